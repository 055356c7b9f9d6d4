"""Nothing in a trace or a benchmark's result fails in any way but by infer_diag's own errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import test_benchmark_results as results
import test_envoy as envoy
import test_loki as loki
import test_trace_spans as traces
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_ugly_input import diagnosed, mutated

from infer_diag.loaders.request_traces.registry import LOADERS

RUN = {"request_id": "r", "input_toks": 1, "output_toks": 2, "arrival_time": 1.7e9, "queued_ts": 1.0, "scheduled_ts": 2.0,
       "first_token_ts": 3.0, "last_token_ts": 4.0}  # fmt: skip
DOCUMENTS: dict[str, Any] = {
    "vllm-bench": results.SUMMED | results.DETAIL,
    "sglang-bench": results.SGLANG,
    "vllm-startup": results.TestBenchStartup.DOCUMENT,
    "genai-perf": results.TestGenaiPerf().document([{"text_output": "a"}, results.TestGenaiPerf().chunk(content="b")]),
    "genai-perf-summary": {"request_latency": {"unit": "ms", "avg": 1.0}, "request_count": {"avg": 2}},
    "aiperf": results.TestAiperf().record("a"),
    "guidellm": results.TestGuidellm().old(),
    "otlp": traces.export(traces.request(0)),
    "otlp start": traces.START[1],
    "vllm-run": RUN,
    "vllm-run-meta": {"engine_kwargs": {"max_num_seqs": 1}, "vllm_version": "1", "kv_cache": {}, "hardware": {}},
    "mooncake": {"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]},
    "jaeger": {"data": [{"spans": [{"spanID": "1", "traceID": "a", "operationName": "llm_request", "startTime": 1, "duration": 2,
                                    "tags": [{"key": "gen_ai.latency.e2e", "value": 1}], "references": [{}]}]}]},
}  # fmt: skip
TEXTS = {
    "azure-llm": "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:17:03.9799600,4808,10\n" * 4,
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "5,ChatGPT,472,18,490,x\n" * 4,
    "vllm-run-series": "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n"
    + "1.0,2.0,3.0,4,5,6.0\n" * 4,
    "envoy": envoy.TEXT,
    "loki listing": loki.listing(loki.STAMPED[::-1]),
    "loki answer": loki.answer(loki.STAMPED[::-1]),
    **{name: json.dumps(document) + "\n" + json.dumps(document) for name, document in DOCUMENTS.items()},
}
some = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.sampled_from([10**400, -1, 2**64, "", "NaN", "1e999", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["key", "value", "spans", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, each in inner for place in places(each, (*here, key)))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = replaced(value[place[0]], place[1:], new)
    return copy


def test_every_format_has_a_fixture() -> None:
    assert {loader.name for loader in LOADERS} - {"table"} <= {*TEXTS}


@pytest.mark.parametrize("name", TEXTS)
@some
@example(seed=6521)
@given(seed=st.integers(0, 2**32))
def test_mutated_files(tmp_path: Path, name: str, seed: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(mutated(TEXTS[name].encode(), seed))
    diagnosed(path)
    if name in {loader.name for loader in LOADERS}:
        diagnosed(path, format=name)


@pytest.mark.parametrize("name", DOCUMENTS)
@some
@given(data=st.data())
def test_any_value_anywhere(tmp_path: Path, name: str, data: st.DataObject) -> None:
    document = DOCUMENTS[name]
    for _ in range(data.draw(st.integers(1, 3))):
        document = replaced(document, data.draw(st.sampled_from(places(document))), data.draw(JSON))
    path = tmp_path / "file"
    path.write_text(json.dumps(document, indent=data.draw(st.sampled_from([None, 1]))))
    diagnosed(path, format=name.partition(" ")[0])


CELLS = st.none() | st.floats() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12) | st.datetimes().map(str)
MAPPINGS = (
    {"arrival_s": "a", "output_tokens": "b"},
    {"arrival_s": ("a", "ms"), "last_token_s": "b"},
    {"ttft_s": "a", "tpot_s": "b"},
)


@some
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    kind=st.sampled_from(["csv", "json", "parquet"]),
    mapping=st.sampled_from(MAPPINGS),
)
def test_tables_of_anything(tmp_path: Path, rows: list[tuple[Any, Any]], kind: str, mapping: dict[str, str]) -> None:
    path = tmp_path / "file"
    if kind == "csv":
        path.write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows), encoding="utf-8", errors="replace")
    elif kind == "json":
        path.write_text("\n".join(json.dumps({"a": a, "b": b}) for a, b in rows))
    else:
        pl.DataFrame(
            {"a": [str(a) for a, _ in rows], "b": [b if isinstance(b, float) else None for _, b in rows]},
            schema={"a": pl.String, "b": pl.Float64},
        ).write_parquet(path)
    diagnosed(path, format="table", columns=mapping)


@pytest.mark.parametrize(
    "name", ["vllm-bench", "genai-perf", "guidellm", "jaeger", "otlp", "vllm-startup", "vllm-run-meta"]
)
def test_ten_thousand_levels_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_text('{"a":' * 10_000 + "1" + "}" * 10_000)
    assert diagnosed(path, format=name) is None
