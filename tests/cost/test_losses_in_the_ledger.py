"""Work that nobody received, padding and batches, from what the logs of engines without gauges tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import infer_diag as diag
from infer_diag.attribution.cost.entry import Entry
from infer_diag.attribution.cost.ledger import observed
from infer_diag.fleet import Facts
from infer_diag.simulators.serving import (
    EngineSettings,
    StepTime,
    lognormal_tokens,
    poisson_arrivals,
    simulate,
    workload,
)

FACTS = Facts("Llama-2-13B", gpu="A100-SXM-80GB", gpu_count=1, precision="float16", price_per_gpu_h=2.0)
EPOCH = 1_772_352_000
STEP = StepTime(0.01, 5e-5, 2e-4)


def tgi_line(end_s: float, total_s: float, queue_s: float, tokens: int) -> str:
    stamp = f"2026-03-01T08:{int(end_s) // 60:02d}:{end_s % 60:09.6f}Z"
    work_s = total_s - queue_s
    return (
        f'{stamp}  INFO generate{{total_time="{total_s}s" validation_time="1ms" queue_time="{queue_s}s" '
        f'inference_time="{work_s}s" time_per_token="{work_s / tokens}s" seed="None"}}: '
        "text_generation_router::server: router/src/server.rs:300: Success\n"
    )


def spans(*told: tuple[float, float, int | None, bool]) -> str:
    """(begin, end, output tokens, failed) of each request, as an exporter of OTLP writes them."""
    rows = []
    for number, (begin, end, tokens, failed) in enumerate(told):
        attributes = [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "10"}}]
        if tokens is not None:
            attributes.append({"key": "gen_ai.usage.output_tokens", "value": {"intValue": str(tokens)}})
        rows.append(
            {
                "traceId": f"{number:032x}",
                "spanId": f"{number + 1:016x}",
                "name": "chat",
                "startTimeUnixNano": str(round((EPOCH + begin) * 1e9)),
                "endTimeUnixNano": str(round((EPOCH + end) * 1e9)),
                "attributes": attributes,
                "status": {"code": 2} if failed else {},
            }
        )
    scope = {"scope": {"name": "app"}, "spans": rows}
    return json.dumps({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]})


def test_times_of_requests_tell_the_batch_of_an_engine_that_prints_none(tmp_path: Path) -> None:
    # Four at a time, each at work for 10 s after 2 s in the queue: the waiting ones are not in the batch.
    ends = [10.0 * wave + number / 100 for wave in range(2, 60) for number in range(4)]
    (tmp_path / "server.log").write_text("".join(tgi_line(end, 12.0, 2.0, 100) for end in ends))
    seen = observed(diag.load(tmp_path), FACTS)
    inner = seen.windows[2:-2]
    assert inner["running_count"].to_numpy() == pytest.approx(4.0, rel=0.02)
    assert (inner["decode_tokens"] / inner["step_count"]).to_numpy() == pytest.approx(4.0, rel=0.02)
    computed = seen.ledger["computed_decode"]
    assert (computed.status, computed.value) == ("bounded", pytest.approx(100 * len(ends), rel=1e-6))


def test_requests_that_do_not_tell_waiting_from_work_tell_no_batch(tmp_path: Path) -> None:
    made = spans(*((10.0 * number, 10.0 * number + 8.0, 50, False) for number in range(40)))
    (tmp_path / "spans.jsonl").write_text(made)
    seen = observed(diag.load(tmp_path), Facts(held_gpu_h=1.0).over(FACTS))
    assert seen.windows["step_count"].count() == 0
    assert seen.ledger["computed_decode"].status == "not_identifiable"


def undelivered(tmp_path: Path, *failed: int | None) -> Entry:
    good = [(10.0 * number, 10.0 * number + 8.0, 50, False) for number in range(40)]
    bad = [(400.0 + number, 405.0 + number, tokens, True) for number, tokens in enumerate(failed)]
    (tmp_path / "spans.jsonl").write_text(spans(*good, *bad))
    (tmp_path / "server.log").write_text("".join(tgi_line(10.0 + number, 5.0, 1.0, 1) for number in range(400)))
    return observed(diag.load(tmp_path), FACTS).ledger["undelivered_output"]


def test_failed_requests_without_their_tokens_are_no_measured_zero(tmp_path: Path) -> None:
    entry = undelivered(tmp_path, None, None)
    assert entry.value is None
    assert entry.status == "not_identifiable"
    assert "2 requests" in str(entry.missing)


def test_requests_that_say_nothing_of_how_they_ended_tell_no_loss(tmp_path: Path) -> None:
    entry = undelivered(tmp_path)
    assert (entry.value, entry.status) == (None, "not_identifiable")


def test_padding_of_whole_batches_is_measured() -> None:
    arrival_s = poisson_arrivals(8.0, 50.0, seed=0)
    prompt = lognormal_tokens(len(arrival_s), mean=200, cv=0.9, seed=1, longest=1500)
    output = lognormal_tokens(len(arrival_s), mean=60, cv=0.9, seed=2, longest=500)
    result = simulate(workload(arrival_s, prompt, output), EngineSettings(scheduler="static", batch_size=16), STEP)
    seen = observed(result.recording, FACTS)
    lengths = result.requests.sort("arrival_s")["output_tokens"].to_list()
    rows = [lengths[place : place + 16] for place in range(0, len(lengths), 16)]
    padded = sum(max(part) - each for part in rows for each in part)
    assert (seen.ledger["padded"].status, seen.ledger["padded"].value) == ("measured", pytest.approx(padded, rel=1e-9))
    assert seen.windows["padded_tokens"].sum() == pytest.approx(padded, rel=1e-9)


@pytest.mark.parametrize("name", ["gen-api", "writer", "phi-sessions", "desk-llama"])
def test_every_entry_has_a_status_and_a_source_or_names_what_is_missing(name: str) -> None:
    seen = observed(diag.load(f"sample:fleet/{name}"), FACTS)
    for entry, each in seen.ledger.items():
        assert each.missing if each.status == "not_identifiable" else each.source, entry
        if each.status == "not_identifiable":
            assert each.value is None, entry
        if each.status == "bounded" and each.value is not None:
            assert each.lower is not None or each.upper is not None, entry


def test_iterations_that_tell_no_output_tokens_are_no_measured_zero(tmp_path: Path) -> None:
    def line(number: int, context: int) -> str:
        counts = {"Active Request Count": 4, "Context Requests": context, "Generation Requests": 4 - context}
        counts |= {
            "Iteration Counter": number,
            "Total Context Tokens": 100 * context,
            "Used KV cache blocks": 10,
            "Max KV cache blocks": 100,
        }
        stamp = f"03-01-2026 08:{number // 600:02d}:{number // 10 % 60:02d}"
        return f"[TensorRT-LLM][INFO] {json.dumps({**counts, 'Timestamp': stamp}, separators=(',', ':'))}\n"

    (tmp_path / "server.log").write_text("".join(line(number, int(number % 50 == 0)) for number in range(3000)))
    ledger = observed(diag.load(tmp_path), FACTS).ledger
    assert ledger["computed_decode"].status == "not_identifiable"
    assert ledger["delivered_output"].status == "not_identifiable"
    assert (ledger["computed_prefill"].value, ledger["computed_prefill"].status) == (
        pytest.approx(100 * 60, rel=0.02),
        "measured",
    )
    # Ten lines share a stamp of whole seconds, and the time between two stamps is not idle for that.
    assert ledger["idle"].value == 0
