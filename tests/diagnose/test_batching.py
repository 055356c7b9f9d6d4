"""Findings on serving: each kind of fault is found by its numbers, and its look-alikes are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_diag import schema
from infer_diag.attribution.serving import serving
from infer_diag.diagnose import batching
from infer_diag.diagnose.finding import Finding
from infer_diag.diagnose.remedies import SETTINGS
from infer_diag.loaders import load
from infer_diag.recording import Recording, Source

T0 = datetime(2026, 6, 24, 9, 55, 30, tzinfo=UTC)
REAL_LOG = Path(__file__).parents[3] / "shared/corpus/server_logs/vllm_0.15.0_gpt-oss-120b_tp4_server.log"
Row = tuple[float, int, int, float]


def frame(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = schema.FRAMES[name]
    whole = [{"source_id": 0, "line": number, **row} for number, row in enumerate(rows, 1)]
    data = {column: [row.get(column) for row in whole] for column in columns.column_names()}
    return columns.validate(pl.DataFrame(data, strict=False), cast=True)


def sampled(rows: list[Row], *, kind: str = "interval", **values: Any) -> list[dict[str, Any]]:
    """Samples of `(second, running, waiting, KV use)`."""
    return [
        {
            "time": T0 + timedelta(seconds=at),
            "kind": kind,
            "running_count": running,
            "waiting_count": waiting,
            "kv_usage_ratio": kv,
            "output_tokens_per_s": 30.0 * running if kind == "interval" else None,
            **values,
        }
        for at, running, waiting, kv in rows
    ]


def recorded(samples: list[dict[str, Any]], *, engine: str = "vllm", **frames: Any) -> Recording:
    source = Source("logs/server.log", engine, engine)
    made = {name: frame(name, rows) for name, rows in {"engine_samples": samples, **frames}.items()}
    return Recording(sources=(source,), **made)


def found(recording: Recording) -> dict[str, Finding]:
    return {
        finding.id.removeprefix("batching."): finding for finding in batching.findings(recording, serving(recording))
    }


def every(seconds: float, rows: list[tuple[int, int, float]]) -> list[Row]:
    return [(seconds * number, *row) for number, row in enumerate(rows)]


FULL_POOL = every(5, [(247, 740, 0.997), (241, 746, 0.996), (233, 754, 0.997), (226, 761, 0.999), (219, 768, 1.0)])


def test_a_full_pool_with_a_queue_is_saturation_and_names_the_engines_own_setting() -> None:
    told = found(recorded(sampled(FULL_POOL)))
    assert told["kv_saturation"].severity == "high"
    assert told["kv_saturation"].status == "measured"
    assert "768" in told["kv_saturation"].sentence
    assert "--gpu-memory-utilization" in (told["kv_saturation"].remedy or "")
    assert "logs/server.log:5" in told["kv_saturation"].evidence
    assert not {"queue", "concurrency_cap", "healthy", "burst", "scheduler_stall"} & set(told)


def test_a_full_pool_without_a_queue_is_no_loss() -> None:
    told = found(recorded(sampled(every(10, [(200, 0, 0.99)] * 4))))
    assert set(told) == {"kv_saturation"}
    assert told["kv_saturation"].severity == "low"


def test_one_full_sample_of_many_weighs_little() -> None:
    rows = every(10, [(20, 0, 0.5)] * 20 + [(40, 3, 0.99)])
    assert found(recorded(sampled(rows)))["kv_saturation"].severity == "low"


def test_requests_that_leave_a_full_pool_are_suspected_and_not_counted() -> None:
    told = found(recorded(sampled(FULL_POOL, prompt_tokens_per_s=0.0)))
    assert "preemption" not in told
    assert told["preemption_suspected"].status == "bounded"
    assert "between 0 and 28" in told["preemption_suspected"].sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens_per_s": 900.0},
        {"prompt_tokens_per_s": 0.0, "kv_usage_ratio": 0.9},
        {"prompt_tokens_per_s": None},
    ],
)
def test_preemption_is_not_suspected_where_prompts_come_in_or_the_pool_has_room(changes: dict[str, Any]) -> None:
    assert "preemption_suspected" not in found(recorded(sampled(FULL_POOL, **changes)))


def test_a_log_that_counts_preemptions_needs_no_suspicion() -> None:
    counted = found(recorded(sampled(FULL_POOL, prompt_tokens_per_s=0.0, preemption_count=4)))
    assert "20 times" in counted["preemption"].sentence
    assert "preemption_suspected" not in counted


def test_the_old_warning_gives_bounds() -> None:
    lines = [{"kind": "preemption", "line": 77, "fields": "total_num_cumulative_preemption=51"}]
    told = found(recorded(sampled(FULL_POOL), incidents=lines))["preemption"]
    assert told.status == "bounded"
    assert "at least 51" in told.sentence
    assert "at most 100" in told.sentence
    assert told.evidence == ("logs/server.log:77",)


def test_steps_with_far_more_tokens_than_requests_are_work_done_again() -> None:
    rows = [*steps(0, 0.0), {**steps(0, 0.0)[0], "decode_tokens": 136}]
    told = found(recorded([], engine_steps=rows))["preemption_suspected"]
    assert "128 tokens more" in told.sentence
    assert told.evidence[-1] == "logs/server.log:101"
    assert "preemption" not in found(recorded([], engine_steps=rows))


def limited(limit: int, rows: list[Row]) -> Recording:
    config = [{"line": 1, "start_id": "start-1", "engine": "vllm", "max_running_count": limit}]
    return recorded([{**row, "line": 10 + n} for n, row in enumerate(sampled(rows))], deployments=config)


def test_a_pool_of_few_blocks_is_full_before_its_last_one() -> None:
    rows = every(10, [(2, 0, 0.3), (4, 6, 0.85), (4, 13, 0.92), (5, 17, 0.92)])
    told = found(limited(12, rows))["kv_saturation"]
    assert (told.severity, told.status) == ("high", "modelled")
    assert "below the sequence limit of 12" in told.sentence
    assert "kv_saturation" not in found(limited(5, rows[2:]))
    assert "kv_saturation" not in found(recorded(sampled(rows)))


def test_swapped_sequences_are_preempted_whatever_counts_them() -> None:
    told = found(recorded(sampled(every(5, [(10, 0, 0.9)] * 3), swapped_count=4)))
    assert told["preemption"].status == "bounded"


def test_sglang_is_told_its_own_flags() -> None:
    lines = [{"kind": "preemption", "fields": "#retracted_reqs: 2"}]
    told = found(recorded(sampled(FULL_POOL, kind="decode"), engine="sglang", incidents=lines))
    assert "--mem-fraction-static" in (told["kv_saturation"].remedy or "")
    assert "--schedule-conservativeness" in (told["preemption"].remedy or "")
    assert "--max-num-seqs" not in str(told)


BURST = [(0.4 * n, 8 * n, 114 - 8 * n, 0.03 * n) for n in range(9)]


def test_a_queue_that_comes_at_once_and_drains_into_a_roomy_pool_is_a_burst() -> None:
    told = found(recorded(sampled(BURST, kind="prefill", new_tokens=8192, new_count=9), engine="sglang"))
    assert "114" in told["burst"].sentence
    assert "8,192 tokens" in told["prefill_bound"].sentence
    assert "--chunked-prefill-size" in (told["prefill_bound"].remedy or "")
    assert not {"kv_saturation", "scheduler_stall", "concurrency_cap", "queue"} & set(told)


def test_a_burst_that_is_gone_by_the_next_sample_weighs_less() -> None:
    rows = every(5, [(4, 0, 0.1), (20, 40, 0.2), (60, 0, 0.4), (10, 0, 0.1)])
    assert found(recorded(sampled(rows)))["burst"].severity == "low"


@pytest.mark.parametrize(
    "counts", [[0, 12, 22], [10, 20, 30, 40, 30], [740, 746, 754], [0, 9, 20, 35, 50, 70, 10], [0, 5, 0], [20, 20, 20]]
)
def test_a_queue_that_grows_stays_or_is_small_is_no_burst(counts: list[int]) -> None:
    rows = every(10, [(16, waiting, 0.3) for waiting in counts])
    assert "burst" not in found(recorded(sampled(rows)))


def test_arrivals_decide_where_the_log_has_them() -> None:
    rows = sampled(every(10, [(2, 0, 0.01), (2, 30, 0.01), (2, 10, 0.01), (2, 0, 0.01)]))
    steady = [{"request_id": str(n), "arrival_s": n / 2} for n in range(70)]
    at_once = [{"request_id": str(n), "arrival_s": 30.0 * (n // 16)} for n in range(64)]
    assert "burst" in found(recorded(rows))
    assert "burst" not in found(recorded(rows, requests=steady))
    told = found(recorded(rows, requests=at_once))["burst"]
    assert told.sentence.startswith("16 requests arrive within 2 s")
    unqueued = sampled(every(10, [(20, 0, 0.5)] * 4))
    assert "burst" not in found(recorded(unqueued, requests=at_once))


def test_a_queue_that_goes_away_without_being_served_is_no_burst() -> None:
    assert "burst" not in found(recorded(sampled(every(10, [(0, 0, 0.0), (0, 40, 0.0), (0, 0, 0.0)]))))


def test_a_queue_in_front_of_a_full_pool_is_no_burst() -> None:
    rows = every(10, [(60, 0, 0.5), (90, 40, 0.99), (90, 10, 0.99), (80, 0, 0.9)])
    told = found(recorded(sampled(rows)))
    assert "burst" not in told
    assert "kv_saturation" in told


def test_running_at_the_stated_limit_with_a_queue_and_room_is_the_limit() -> None:
    config = [{"line": 1, "start_id": "start-1", "engine": "vllm", "max_running_count": 8}]
    samples = [
        {**row, "line": 10 + n}
        for n, row in enumerate(sampled(every(10, [(8, 3, 0.2), (8, 5, 0.2), (8, 4, 0.2), (3, 0, 0.1)])))
    ]
    told = found(recorded(samples, deployments=config))["concurrency_cap"]
    assert (told.severity, told.status) == ("high", "measured")
    assert "(8 now)" in (told.remedy or "")
    assert "about 36 (modelled)" in told.sentence


def test_a_limit_that_the_log_does_not_state_is_only_modelled() -> None:
    rows = every(10, [(16, 9, 0.2), (16, 12, 0.2), (16, 30, 0.25), (16, 8, 0.2)])
    assert found(recorded(sampled(rows)))["concurrency_cap"].status == "modelled"
    assert "concurrency_cap" not in found(recorded(sampled([(at, 10 + int(at), w, kv) for at, _, w, kv in rows])))


def test_a_maximum_that_is_touched_now_and_then_is_no_limit() -> None:
    rows = every(10, [(10 + n % 7, 5, 0.2) for n in range(21)])
    assert "concurrency_cap" not in found(recorded(sampled(rows)))


def test_below_the_stated_limit_the_limit_is_not_blamed() -> None:
    config = [{"line": 1, "start_id": "start-1", "engine": "vllm", "max_running_count": 256}]
    samples = [{**row, "line": 10 + n} for n, row in enumerate(sampled(every(10, [(16, 9, 0.2)] * 4)))]
    told = found(recorded(samples, deployments=config))
    assert "concurrency_cap" not in told
    assert told["queue"].severity == "medium"


STALL = every(5, [(2, 0, 0.001), (0, 12, 0.0), (0, 22, 0.0)])


def test_waiting_without_anything_running_is_a_scheduler_that_stands_still() -> None:
    told = found(recorded(sampled(STALL)))
    assert told["scheduler_stall"].severity == "high"
    assert told["scheduler_stall"].evidence == ("logs/server.log:2", "logs/server.log:3")
    assert not {"kv_saturation", "healthy", "concurrency_cap", "queue"} & set(told)


@pytest.mark.parametrize(
    "rows",
    [
        every(5, [(2, 0, 0.0), (0, 12, 0.0), (12, 0, 0.01)]),
        every(5, [(0, 0, 0.0)] * 4),
        every(5, [(0, 12, 0.9), (0, 22, 0.9)]),
    ],
)
def test_a_moment_an_idle_server_and_a_full_pool_are_no_stall(rows: list[Row]) -> None:
    assert "scheduler_stall" not in found(recorded(sampled(rows)))


def test_an_interval_that_produced_output_was_no_standstill() -> None:
    rows = sampled(every(10, [(0, 12, 0.0), (0, 9, 0.0)]), output_tokens_per_s=50.0)
    assert "scheduler_stall" not in found(recorded(rows))


def test_a_stall_with_the_pool_unknown_rules_out_no_saturation() -> None:
    rows = every(10, [(0, 12, 0.0), (0, 22, 0.0), (0, 30, 0.0)])
    known = found(recorded(sampled(rows, output_tokens_per_s=0.0)))["scheduler_stall"]
    unknown = found(recorded(sampled(rows, output_tokens_per_s=0.0, kv_usage_ratio=None)))["scheduler_stall"]
    assert "neither saturation" in known.sentence
    assert "saturation" not in unknown.sentence
    assert "the log does not tell" in unknown.sentence


def test_prefill_lines_show_work_by_being_there() -> None:
    rows = sampled(every(0.3, [(0, 30, 0.0), (0, 22, 0.02)]), kind="prefill", new_tokens=8192)
    assert "scheduler_stall" not in found(recorded(rows, engine="sglang"))


def test_little_demand_is_no_fault() -> None:
    config = [{"line": 1, "start_id": "start-1", "engine": "vllm", "max_running_count": 256}]
    samples = [{**row, "line": 10 + n} for n, row in enumerate(sampled(every(10, [(12, 0, 0.1)] * 5)))]
    told = found(recorded(samples, deployments=config))
    assert set(told) == {"underfilled"}
    assert told["underfilled"].severity == "info"
    assert "demand" in told["underfilled"].sentence


def test_healthy_needs_three_samples_no_queue_and_room() -> None:
    assert set(found(recorded(sampled(every(10, [(30, 0, 0.6)] * 3))))) == {"healthy"}
    assert not found(recorded(sampled(every(10, [(30, 0, 0.6)] * 2))))
    assert not found(recorded(sampled(every(10, [(38, 0, 0.885), (38, 0, 0.898), (39, 0, 0.932)]))))
    assert "healthy" not in found(recorded(sampled(every(10, [(30, 0, 0.6), (30, 1, 0.6), (30, 0, 0.6)]))))
    unknown = [{**row, "waiting_count": None} for row in sampled(every(10, [(30, 0, 0.6)] * 4))]
    assert not found(recorded(unknown))


def test_one_replica_with_a_full_pool_is_not_hidden_by_an_empty_one() -> None:
    calm = [
        {**row, "replica": "DP0", "line": 2 * n + 1} for n, row in enumerate(sampled(every(10, [(5, 0, 0.05)] * 4)))
    ]
    full = [
        {**row, "replica": "DP1", "line": 2 * n + 2} for n, row in enumerate(sampled(every(10, [(90, 40, 0.99)] * 4)))
    ]
    told = found(recorded(calm + full))
    assert told["kv_saturation"].sentence.startswith("replica DP1: ")
    assert "healthy" not in told


def test_of_several_replicas_the_worst_speaks_and_the_others_are_counted() -> None:
    mild = [
        {**row, "replica": "DP0", "line": 100 + n}
        for n, row in enumerate(sampled(every(10, [(90, 0, 0.9)] * 9 + [(90, 4, 0.99)])))
    ]
    grave = [
        {**row, "replica": "DP1", "line": 200 + n} for n, row in enumerate(sampled(every(10, [(90, 40, 0.99)] * 4)))
    ]
    told = found(recorded(mild + grave))["kv_saturation"]
    assert told.severity == "high"
    assert told.sentence.startswith("replica DP1: ")
    assert told.sentence.endswith("The same holds for 1 of 1 others.")


def steps(mixed: int, mixed_s: float, decode: int = 100) -> list[dict[str, Any]]:
    counts = {"prefill_tokens": 0, "decode_tokens": 8, "decode_count": 8}
    pure = [{"kind": "decode", "prefill_count": 0, "duration_s": 0.010, **counts}] * decode
    both = [{"kind": "mixed", "prefill_count": 1, "duration_s": mixed_s, **counts, "prefill_tokens": 4096}] * mixed
    return pure + both


@pytest.mark.parametrize(("mixed", "severity"), [(20, "high"), (5, "medium"), (1, "low")])
def test_decode_behind_prefill_weighs_by_its_share_of_the_step_time(mixed: int, severity: str) -> None:
    told = found(recorded([], engine_steps=steps(mixed, 0.060)))["prefill_starves_decode"]
    assert (told.severity, told.status) == (severity, "modelled")
    assert "--max-num-batched-tokens" in (told.remedy or "")
    assert len(told.evidence) == min(5, mixed)


def test_mixed_steps_as_short_as_pure_ones_are_no_fault() -> None:
    assert not found(recorded([], engine_steps=steps(20, 0.0105)))


def test_prompts_that_take_most_of_the_step_time() -> None:
    assert "prefill_bound" in found(recorded([], engine_steps=steps(40, 0.060)))
    assert "prefill_bound" not in found(recorded([], engine_steps=steps(10, 0.060)))


def test_queue_and_prefill_shares_of_the_requests() -> None:
    queued = [
        {
            "request_id": str(n),
            "arrival_s": 0.0,
            "queued_s": 0.0,
            "scheduled_s": 8.0,
            "first_token_s": 9.0,
            "last_token_s": 10.0,
        }
        for n in range(4)
    ]
    told = found(recorded([], requests=queued))
    assert told["queue"].severity == "high"
    assert "80 %" in told["queue"].sentence
    prompts = [{**row, "queued_s": None, "scheduled_s": 0.0} for row in queued]
    assert set(found(recorded([], requests=prompts))) == {"prefill_bound"}


def test_unequal_lengths_are_modelled_from_many_requests_only() -> None:
    unequal = [
        {"request_id": str(n), "prompt_tokens": 10, "output_tokens": 1000 if n % 10 == 0 else 10} for n in range(100)
    ]
    assert found(recorded([], requests=unequal))["length_variance"].status == "modelled"
    assert not found(recorded([], requests=unequal[:99]))
    equal = [{**row, "output_tokens": 100 + number % 3} for number, row in enumerate(unequal)]
    assert not found(recorded([], requests=equal))


def test_nothing_is_found_where_nothing_was_served() -> None:
    assert batching.findings(Recording(), None) == []


ANY = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.floats(0, 1)), min_size=1, max_size=12)


@given(ANY, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_findings_do_not_depend_on_row_order_and_healthy_stands_alone(
    counts: list[tuple[int, int, float]], random: Any
) -> None:
    rows = [{**row, "line": n} for n, row in enumerate(sampled(every(10, counts)), 1)]
    told = found(recorded(rows))
    assert told == found(recorded(random.sample(rows, len(rows))))
    if "healthy" in told:
        assert set(told) == {"healthy"}
        assert all(waiting == 0 for _, waiting, _ in counts)
    if any(waiting and kv >= 0.95 for _, waiting, kv in counts):
        assert "kv_saturation" in told
    for finding in told.values():
        assert len(finding.evidence) <= 5


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the corpus is not beside this checkout")
def test_a_real_log_of_every_step() -> None:
    told = serving(load(str(REAL_LOG)))
    assert told is not None
    assert told.steps["step_count"].sum() == 7241
    assert told.stall.step_s == pytest.approx(91.2, abs=0.05)
    assert (told.stall.mixed_count, told.stall.mixed_s) == (477, pytest.approx(33.9, abs=0.05))
    assert told.stall.stalled_s == pytest.approx(29.7, abs=0.5)
    assert told.request_count == 513
    assert told.preemptions.count is None


def test_settings_are_flags() -> None:
    assert all(flag.startswith("--") for flags in SETTINGS.values() for flag in flags.values())


def hung(kv: list[float]) -> list[Row]:
    return every(10, [(6, 4, use) for use in kv])


def test_running_without_a_token_in_or_out_is_a_standstill() -> None:
    rows = sampled(hung([0.5] * 5), output_tokens_per_s=0.0, prompt_tokens_per_s=0.0)
    stall = found(recorded(rows))["scheduler_stall"]
    assert stall.severity == "high"
    assert "6 requests run" in stall.sentence


def test_a_long_prompt_that_fills_the_pool_is_no_standstill() -> None:
    rows = sampled(hung([0.1, 0.2, 0.3, 0.4, 0.5]), output_tokens_per_s=0.0, prompt_tokens_per_s=0.0)
    assert "scheduler_stall" not in found(recorded(rows))


@pytest.mark.parametrize("rates", [(1.5, 0.0), (0.0, 80.0)])
def test_tokens_on_either_side_are_no_standstill(rates: tuple[float, float]) -> None:
    rows = sampled(hung([0.5] * 5), output_tokens_per_s=rates[0], prompt_tokens_per_s=rates[1])
    assert "scheduler_stall" not in found(recorded(rows))


@pytest.mark.parametrize(
    ("running", "use", "capped"), [(1, 0.7, False), (2, 0.8, False), (1, 0.3, True), (8, 0.5, True)]
)
def test_running_at_its_maximum_is_a_cap_only_with_room_for_one_more(running: int, use: float, capped: bool) -> None:
    rows = sampled(every(10, [(running, 9, use)] * 5))
    assert ("concurrency_cap" in found(recorded(rows))) is capped


def test_a_limit_that_is_not_stated_needs_a_pool_that_is_known_to_have_room() -> None:
    rows = sampled(every(10, [(8, 9, 0.5)] * 5))
    unknown = [{**row, "kv_usage_ratio": None} for row in rows]
    assert "concurrency_cap" not in found(recorded(unknown))
    stated = found(recorded(unknown, deployments=[{"engine": "vllm", "line": 0, "max_running_count": 8}]))
    assert "unknown" not in stated["concurrency_cap"].sentence


def test_a_burst_beside_an_unknown_pool_does_not_clear_the_memory() -> None:
    rows = sampled(every(5, [(4, 0, 0.1), (20, 40, 0.2), (60, 0, 0.4), (10, 0, 0.1)]))
    told = found(recorded([{**row, "kv_usage_ratio": None} for row in rows]))["burst"].sentence
    assert "not a lack of memory" not in told
    assert "not a lack of memory" in found(recorded(rows))["burst"].sentence
