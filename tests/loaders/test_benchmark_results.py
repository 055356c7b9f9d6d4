"""Results of benchmarks: events where they are told, durations where they are, means as means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

import infer_diag as diag
from infer_diag.errors import SourceError
from infer_diag.recording import Recording

SUMMED: dict[str, Any] = {
    "date": "20260101-120000", "endpoint_type": "openai", "backend": "vllm", "label": None, "model_id": "org/m",
    "tokenizer_id": "org/m", "num_prompts": 3, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None,
    "duration": 3.0, "completed": 2, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 8,
    "request_throughput": 0.67, "request_goodput": None, "output_throughput": 2.67, "total_token_throughput": 12.67,
    "mean_ttft_ms": 150.0, "median_ttft_ms": 150.0, "p99_ttft_ms": 199.0, "mean_tpot_ms": 20.0, "mean_itl_ms": 20.0,
}  # fmt: skip
DETAIL: dict[str, Any] = {
    "input_lens": [10, 20, 30],
    "output_lens": [3, 5, 0],
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.02, 0.02], [0.02] * 4, []],
    "start_times": [1000.5, 1000.75, 1001.0],
    "generated_texts": ["a", "b", ""],
    "errors": ["", "", "ConnectionError"],
}
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": None,
    "sharegpt_output_len": None, "random_input_len": 10, "random_range_ratio": 0.0, "duration": 3.0, "completed": 3,
    "total_input_tokens": 60, "total_output_tokens": 30, "total_output_tokens_retokenized": 30,
    "mean_e2e_latency_ms": 500.0, "mean_ttft_ms": 100.0, "p99_ttft_ms": float("nan"), "mean_tpot_ms": 10.0,
}  # fmt: skip


def loaded(tmp_path: Path, *documents: Any, indent: int | None = None) -> Recording:
    path = tmp_path / "result"
    path.write_text("\n".join(json.dumps(each, indent=indent) for each in documents) + "\n")
    return diag.load(path)


def requests_of(recording: Recording) -> dict[str, Any]:
    return diag.diagnose(recording).to_dict()["serving"]["requests"]


def finding_ids(recording: Recording) -> set[str]:
    return {finding.id for finding in diag.diagnose(recording).findings}


class TestBenchServe:
    def test_means_make_no_requests(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, SUMMED)
        assert recording.rows() == {"request_totals": 4}
        told = requests_of(recording)
        assert told["count"] == 2
        assert (told["ttft_s"]["mean"], told["ttft_s"]["p50"], told["ttft_s"]["p95"]) == (0.15, None, None)
        assert (told["prompt_tokens"]["mean"], told["output_tokens"]["mean"]) == (15.0, 4.0)
        assert told["e2e_s"] is None
        assert any("p99_ttft 199" in note for note in recording.sources[0].notes)

    def test_details_are_events(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, SUMMED | DETAIL, indent=4)
        assert recording.requests["arrival_s"].to_list() == [0.0, 0.25, 0.5]
        assert recording.requests["first_token_s"].to_list() == [pytest.approx(0.1), pytest.approx(0.45), None]
        assert recording.requests["last_token_s"].to_list() == [pytest.approx(0.14), pytest.approx(0.53), None]
        assert recording.requests["finish_reason"].to_list() == [None, None, "error"]
        told = requests_of(recording)
        assert (told["count"], told["tpot_s"]["mean"]) == (2, pytest.approx(0.02))
        assert recording.request_totals.is_empty()
        assert "data.implausible" not in finding_ids(recording)

    def test_latencies_win_over_sums(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, SUMMED | DETAIL | {"latencies": [0.2, 0.3, 0.0]})
        assert recording.requests["last_token_s"].to_list() == [pytest.approx(0.2), pytest.approx(0.55), None]

    def test_without_begins_only_durations_are_known(self, tmp_path: Path) -> None:
        old = {name: value for name, value in (SUMMED | DETAIL).items() if name != "start_times"}
        recording = loaded(tmp_path, old)
        assert recording.requests.is_empty()
        assert recording.request_timings["e2e_s"].to_list() == [pytest.approx(0.14), pytest.approx(0.28)]
        assert recording.request_timings["decode_s"].to_list() == [pytest.approx(0.04), pytest.approx(0.08)]

    def test_appended_runs_do_not_overlap_in_time(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, SUMMED | DETAIL, SUMMED | DETAIL)
        assert recording.requests.is_empty()
        assert recording.request_timings["line"].to_list() == [1, 1, 2, 2]
        assert requests_of(recording)["count"] == 4

    def test_appended_means_are_weighted(self, tmp_path: Path) -> None:
        other = SUMMED | {"completed": 6, "mean_ttft_ms": 350.0, "total_input_tokens": 90}
        told = requests_of(loaded(tmp_path, SUMMED, other))
        assert (told["count"], told["ttft_s"]["mean"]) == (8, pytest.approx((2 * 0.15 + 6 * 0.35) / 8))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("completed", 3), ("total_output_tokens", 9), ("total_input_tokens", 60), ("mean_ttft_ms", 15.0)],
    )
    def test_totals_that_contradict_the_rows(self, tmp_path: Path, name: str, value: float) -> None:
        recording = loaded(tmp_path, SUMMED | DETAIL | {name: value})
        assert len(recording.sources[0].doubts) == 1 and f"`{name}`" in recording.sources[0].doubts[0]
        assert "data.implausible" in finding_ids(recording)
        assert requests_of(recording)["count"] == 2

    def test_a_cut_result_is_said_to_be_cut(self, tmp_path: Path) -> None:
        (tmp_path / "cut").write_text(json.dumps(SUMMED | DETAIL)[:-80])
        recording = diag.load(tmp_path / "cut")
        assert recording.sources[0].cut and requests_of(recording)["count"] == 2

    def test_odd_values_are_unknown(self, tmp_path: Path) -> None:
        odd = {
            "ttfts": [0.1, None, "x"],
            "itls": [["a"], [0.1], None],
            "errors": ["", "", ""],
            "output_lens": [True, -1, 2.5],
        }
        recording = loaded(tmp_path, SUMMED | DETAIL | odd)
        assert recording.requests["first_token_s"].to_list() == [pytest.approx(0.1), None, None]
        assert recording.requests["output_tokens"].null_count() == 3


class TestSglangBench:
    def test_infinity_and_nan(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, SGLANG, SGLANG)
        assert recording.sources[0].format == "sglang-bench"
        told = requests_of(recording)
        assert (told["count"], told["e2e_s"]["mean"], told["ttft_s"]["p95"]) == (6, 0.5, None)

    def test_details(self, tmp_path: Path) -> None:
        detail = {
            "input_lens": [20] * 3,
            "output_lens": [10] * 3,
            "ttfts": [0.1] * 3,
            "itls": [[0.05] * 8] * 3,
            "errors": [""] * 3,
        }
        recording = loaded(tmp_path, SGLANG | detail)
        assert recording.request_timings["e2e_s"].to_list() == [pytest.approx(0.5)] * 3


class TestBenchStartup:
    DOCUMENT: ClassVar[dict[str, Any]] = {
        "avg_cold_startup_time": 60.0, "cold_startup_times": [59.0, 61.0], "cold_compilation_times": [20.0, 21.0],
        "avg_warm_startup_time": 30.0, "warm_startup_times": [30.0], "warm_compilation_times": [2.0],
    }  # fmt: skip

    def test_each_start_stands_alone(self, tmp_path: Path) -> None:
        starts = diag.diagnose(loaded(tmp_path, self.DOCUMENT, indent=4)).to_dict()["starts"]
        assert [start["phases_s"] for start in starts] == [{"compile": 20.0}, {"compile": 21.0}, {"compile": 2.0}]
        assert [start["caches"]["compile"] for start in starts] == ["miss", "miss", "hit"]
        assert [start["unlogged_s"] for start in starts] == [39.0, 40.0, 28.0]

    def test_averages_alone_are_no_start(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="no single start"):
            loaded(tmp_path, {"avg_cold_startup_time": 60.0, "avg_warm_startup_time": 30.0})


class TestGenaiPerf:
    T0 = 1_700_000_000_000_000_000

    def chunk(self, **delta: Any) -> dict[str, str]:
        return {"response": f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"}

    def document(self, outputs: list[Any], t0: int = T0) -> dict[str, Any]:
        stamps = [t0 + (10 + 20 * at) * 1_000_000 for at in range(len(outputs))]
        sent = {
            "timestamp": t0,
            "request_inputs": {"p": '"timestamp":'},
            "response_timestamps": stamps,
            "response_outputs": outputs,
        }
        return {
            "experiments": [
                {"experiment": {"mode": "concurrency", "value": 2}, "requests": [sent], "window_boundaries": [1]}
            ]
        }

    def test_only_pieces_with_text_are_tokens(self, tmp_path: Path) -> None:
        usage = {"response": 'data: {"choices":[],"usage":{"completion_tokens":2}}'}
        done = {"response": "data: [DONE]\n\n"}
        outputs = [
            self.chunk(role="assistant", content=""),
            self.chunk(content="a"),
            self.chunk(content="b"),
            usage,
            done,
        ]
        row = loaded(tmp_path, self.document(outputs)).requests.row(0, named=True)
        assert (row["first_token_s"], row["last_token_s"], row["output_tokens"]) == (0.03, 0.05, 2)

    def test_triton_and_unknown_pieces(self, tmp_path: Path) -> None:
        row = loaded(tmp_path, self.document([{"text_output": "a"}, {"text_output": ""}, "?"])).requests.row(
            0, named=True
        )
        assert (row["first_token_s"], row["last_token_s"]) == (0.01, 0.05)

    def test_a_clock_that_counts_from_a_boot_has_no_date(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, self.document([{"text_output": "a"}], t0=5_000_000_000))
        assert recording.sources[0].first_time is None and recording.requests["first_token_s"].to_list() == [0.01]

    def test_a_summary_is_a_mean(self, tmp_path: Path) -> None:
        summary = {
            "request_latency": {"unit": "ms", "avg": 6550.0, "p99": 9381.0},
            "time_to_first_token": {"unit": "ms", "avg": 1588.0},
            "inter_token_latency": {"unit": "us", "avg": 50_000.0},
            "output_sequence_length": {"unit": "tokens", "avg": 96.85},
            "request_count": {"unit": "requests", "avg": 200.0},
        }
        recording = loaded(tmp_path, summary, indent=1)
        assert recording.rows() == {"request_totals": 4}
        told = requests_of(recording)
        assert (told["count"], told["e2e_s"]["mean"], told["tpot_s"]["mean"]) == (200, 6.55, 0.05)
        with pytest.raises(SourceError, match="over how many"):
            loaded(tmp_path, {name: each for name, each in summary.items() if name != "request_count"})


class TestAiperf:
    def record(self, name: str, **changes: Any) -> dict[str, Any]:
        told = {
            "metadata": {"x_request_id": name, "request_start_ns": 1759813207532900363, "request_end_ns": 1759813207838764604,
                         "benchmark_phase": "profiling", "was_cancelled": False},
            "metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"}, "time_to_first_token": {"value": 255.0, "unit": "ms"},
                        "request_latency": {"value": 297.5, "unit": "ms"}, "output_sequence_length": {"value": 9, "unit": "tokens"}},
            "error": None,
        }  # fmt: skip
        return {**told, **changes}

    def test_nanoseconds_are_kept(self, tmp_path: Path) -> None:
        later = self.record("b")
        later["metadata"] = {**later["metadata"], "request_start_ns": 1759813207532900363 + 1000}
        recording = loaded(tmp_path, self.record("a"), later)
        assert recording.requests["arrival_s"].to_list() == [0.0, pytest.approx(1e-6)]
        assert recording.requests["request_id"].to_list() == ["a", "b"]
        assert requests_of(recording)["ttft_s"]["mean"] == 0.255

    def test_failures_and_warm_up(self, tmp_path: Path) -> None:
        failed = self.record("b", error={"code": 499}, metrics={"error_isl": {"value": 550, "unit": "tokens"}})
        warm = self.record("w")
        warm["metadata"] = {**warm["metadata"], "benchmark_phase": "warmup"}
        recording = loaded(tmp_path, warm, self.record("a"), failed)
        assert recording.requests["finish_reason"].to_list() == [None, "error"]
        assert recording.requests["last_token_s"].null_count() == 1
        assert requests_of(recording)["count"] == 1
        assert any("1 requests of the warm-up" in note for note in recording.sources[0].notes)

    def test_without_a_first_token_the_end_is_known(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, self.record("a", metrics={}))
        assert recording.requests["last_token_s"].to_list() == [pytest.approx(0.305864241)]
        assert recording.requests["first_token_s"].null_count() == 1


class TestGuidellm:
    def old(self) -> dict[str, Any]:
        good = {"type_": "generative_text_response", "request_id": "q", "prompt_tokens": 8, "output_tokens": 14,
                "start_time": 1759354691.5, "end_time": 1759354695.75, "first_token_time": 1759354692.75, "last_token_time": 1759354695.25}  # fmt: skip
        bad = {
            "request_id": "z",
            "start_time": 1759354692.5,
            "prompt_tokens": 3,
            "output_tokens": 2,
            "last_token_time": 1759354693.0,
        }
        return {
            "benchmarks": [
                {
                    "type_": "generative_benchmark",
                    "requests": {"successful": [good], "errored": [bad], "incomplete": []},
                }
            ]
        }

    def test_the_old_layout(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, self.old(), indent=1)
        told = requests_of(recording)
        assert (told["count"], told["ttft_s"]["mean"], told["e2e_s"]["mean"]) == (1, 1.25, 3.75)
        assert told["tpot_s"]["mean"] == pytest.approx(2.5 / 13, abs=1e-6)
        assert recording.requests["finish_reason"].to_list() == [None, "error"]
        assert recording.requests["arrival_s"].to_list() == [0.0, 1.0]

    def test_the_new_layout(self, tmp_path: Path) -> None:
        timings = {
            "request_start": 1759354691.5,
            "first_token_iteration": 1759354692.75,
            "last_token_iteration": 1759354695.25,
        }
        good = {"request_id": "q", "info": {"status": "completed", "timings": timings}, "request_start_time": 1759354691.5,
                "request_end_time": 1759354695.75, "prompt_tokens": 8, "output_tokens": 14, "time_per_output_token_ms": 999.0}  # fmt: skip
        report = {"metadata": {"guidellm_version": "0.8.1"}, "args": {}, "benchmarks": [
            {"requests": {"successful": [good], "errored": [], "incomplete": []}, "metrics": {"request_totals": {"successful": 5}}}]}  # fmt: skip
        recording = loaded(tmp_path, report)
        told = requests_of(recording)
        assert (told["ttft_s"]["mean"], told["e2e_s"]["mean"]) == (1.25, 3.75)
        assert told["tpot_s"]["mean"] == pytest.approx(2.5 / 13, abs=1e-6)
        assert "benchmark 1 keeps 1 of its 5 finished requests" in recording.sources[0].notes

    def test_a_benchmark_without_requests_tells_means(self, tmp_path: Path) -> None:
        metrics = {"request_latency": {"successful": {"mean": 3.0, "count": 5}}, "time_to_first_token_ms": {"successful": {"mean": 100.0}},
                   "time_per_output_token_ms": {"successful": {"mean": 50.0}}}  # fmt: skip
        report = {
            "metadata": {"guidellm_version": "0.6.0"},
            "benchmarks": [{"type_": "generative_benchmark", "requests": {}, "metrics": metrics}],
        }
        told = requests_of(loaded(tmp_path, report))
        assert (told["count"], told["e2e_s"]["mean"], told["ttft_s"]["mean"], told["tpot_s"]) == (5, 3.0, 0.1, None)
