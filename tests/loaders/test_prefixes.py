"""What serving frameworks put around lines that carry no stamp of an engine."""

from __future__ import annotations

import polars as pl
import pytest

from infer_diag.loaders.text import prefixes

BAR = "Loading safetensors checkpoint shards:  56% Completed | 5/9 [00:13<00:11,  2.87s/it]"
ACCESS = 'INFO:     127.0.0.1:45678 - "POST /v1/completions HTTP/1.1" 200 OK'
OUTER = "2026-03-14T09:26:53,123"


def peeled(text: str) -> dict[str, str | None]:
    frame = pl.DataFrame({"text": [text]}).with_columns(prefixes.clean(pl.col("text")))
    return prefixes.split_at_engine_stamp(frame).row(0, named=True)


@pytest.mark.parametrize(
    ("prefix", "outer", "inner"),
    [
        (f"{OUTER} [INFO ] W-9000-llm_1.0-stdout MODEL_LOG - ", OUTER, None),
        (f"{OUTER} [DEBUG] W-9000-llm_1.0 org.pytorch.serve.wlm.WorkerThread - ", OUTER, None),
        ("2026-03-14 09:26:53,123 [ERROR] W-9000-llm_1.0-stderr MODEL_LOG - ", "2026-03-14 09:26:53,123", None),
        ("(ServeReplica:default:LLM pid=8, ip=192.0.2.7) ", None, None),
        ("(ServeReplica:default:LLM pid=8) INFO 2026-03-14 09:26:53,123 default_LLM 9a8b7c x.py:41 - ", None, "2026-03-14 09:26:53,123"),
        ("(ProxyActor pid=9) INFO 2026-03-14 09:26:53,123 proxy 192.0.2.7 -- ", None, "2026-03-14 09:26:53,123"),
        ("(pid=8, ip=192.0.2.7) ", None, None),
        ("(raylet, ip=192.0.2.7) ", None, None),
        ("(autoscaler +5m11s) ", None, None),
        ('time="2026-03-14T09:26:53Z" level=info msg="', None, "2026-03-14T09:26:53Z"),
        ("2026-03-14T09:26:53.123456Z  INFO ", None, "2026-03-14T09:26:53.123456Z"),
        ("2026-03-14T09:26:53.123456789Z stdout F 2026-03-14T09:26:53.1234Z  WARN ", "2026-03-14T09:26:53.123456789Z", "2026-03-14T09:26:53.1234Z"),
        ("1.05.123.456 W ", None, "1.05.123.456"),
        ("[1707364943] ", None, "1707364943"),
    ],
)  # fmt: skip
def test_a_prefix_is_taken_off(prefix: str, outer: str | None, inner: str | None) -> None:
    for message in ("Torch worker started.", BAR):
        told = peeled(prefix + message)
        assert (told["message"], told["outer"], told["inner"]) == (message, outer, inner)


def test_an_access_line_in_torchserve() -> None:
    told = peeled(f"{OUTER} [INFO ] W-9000-llm_1.0-stdout MODEL_LOG - {ACCESS}")
    assert told["message"] == ACCESS.removeprefix("INFO:     ")
    assert told["outer"] == OUTER


def test_an_engines_stamp_behind_one_space_is_no_tracing() -> None:
    told = peeled("2026-03-14T09:26:53.123456Z  INFO 03-14 09:26:53 [core.py:77] Loading weights took 5.52 seconds")
    assert (told["message"], told["inner"]) == ("Loading weights took 5.52 seconds", "03-14 09:26:53")
