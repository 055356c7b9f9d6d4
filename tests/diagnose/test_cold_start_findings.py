"""What is said of a start, from the text of its log to the finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from infer_diag.attribution.cold_start import start_phases, start_slices, start_summary
from infer_diag.diagnose.cold_start import findings
from infer_diag.diagnose.finding import Finding
from infer_diag.loaders import load

WORKER = "(Worker_TP{rank} pid={rank}) INFO 03-11 08:{clock} [gpu_model_runner.py:1] "


@pytest.fixture
def found(tmp_path: Path):
    def of(text: str) -> dict[str, Finding]:
        path = tmp_path / "server.log"
        path.write_text(text, encoding="utf-8")
        recording = load(path)
        made = findings(recording, start_phases(recording), start_slices(recording), start_summary(recording))
        return {finding.id.removeprefix("cold_start."): finding for finding in made}

    return of


def line(clock: str, message: str) -> str:
    return f"INFO 03-11 08:{clock} [gpu_model_runner.py:1] {message}\n"


def worker(rank: int, clock: str, message: str) -> str:
    return WORKER.format(rank=rank, clock=clock) + message + "\n"


ENGINE = line(
    "00:00",
    "Initializing a V1 LLM engine (v0.15.0) with config: model='m', tensor_parallel_size=1, pipeline_parallel_size=1",
)


def test_a_cause_says_how_long_which_share_where_and_what_to_do(found) -> None:
    text = (
        ENGINE
        + line("00:02", "Starting to load model m...")
        + line("01:02", "Model loading took 200.0 GiB and 60.000000 seconds")
    )
    text += line("01:20", "Graph capturing finished in 17 secs, took 0.48 GiB")
    load_cause = found(text)["weights_load"]
    assert load_cause.severity == "high"
    assert "60 s (75 % of the start)" in load_cause.sentence
    assert load_cause.evidence[-1].endswith("server.log:3")
    assert "--safetensors-load-strategy=prefetch" in (load_cause.remedy or "")
    assert load_cause.saves == 60.0
    assert "cudagraph_capture_sizes" in (found(text)["graph_capture"].remedy or "")


def test_a_download_inside_the_load_is_not_blamed_twice(found) -> None:
    text = ENGINE + line("00:02", "Starting to load model m...")
    text += line("05:05", "Time spent downloading weights for m: 300.123456 seconds")
    text += line("05:15", "Model loading took 14.99 GiB and 312.884285 seconds")
    made = found(text)
    assert made["weights_fetch"].saves == 300.123456
    assert not {"weights_load", "storage_bound"} & set(made)


def test_small_parts_are_no_finding(found) -> None:
    text = ENGINE + line("00:01", "Model loading took 15.0 GiB and 1.000000 seconds")
    text += line("00:30", "Graph capturing finished in 3 secs, took 0.48 GiB")
    assert not {"weights_load", "graph_capture"} & set(found(text))


def test_gaps_that_outweigh_a_fifth_forbid_a_ranking(found) -> None:
    text = line("00:01", "Model loading took 3.4 GiB and 0.902026 seconds")
    text += line("00:09", "Dynamo bytecode transform time: 7.51 s")
    text += line("00:35", "Graph capturing finished in 17 secs, took 0.48 GiB")
    text += line("00:35", "init engine (profile, create kv cache, warmup model) took 34.11 seconds")
    unlogged = found(text)["unlogged"]
    assert "9.6 s of the 34.9 s" in unlogged.sentence
    assert "not ranked" in unlogged.sentence
    assert "VLLM_LOGGING_LEVEL=DEBUG" in (unlogged.remedy or "")


def test_a_start_whose_lines_explain_it_is_not_called_unlogged(found) -> None:
    text = ENGINE + line("00:30", "Model loading took 60.0 GiB and 29.500000 seconds")
    text += line("00:50", "Graph capturing finished in 19 secs, took 0.48 GiB")
    assert "unlogged" not in found(text)


def test_cache_miss_saves_what_the_compiler_takes(found) -> None:
    text = ENGINE + line("00:05", "Dynamo bytecode transform time: 4.60 s")
    text += line("00:45", "Compiling a graph for compile range (1, 8192) takes 38.50 s")
    text += line("00:45", "torch.compile takes 43.10 s in total")
    made = found(text)
    assert made["compile_cache_miss"].saves == 38.5
    assert "VLLM_CACHE_ROOT" in (made["compile_cache_miss"].remedy or "")
    assert "43.1 s" in made["compile"].sentence
    assert "compile_cache_hit" not in made


def test_cache_hit_is_no_fault_and_asks_for_no_cache(found) -> None:
    text = ENGINE + line("00:09", "Dynamo bytecode transform time: 7.51 s")
    text += line(
        "00:10", "Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 0.913 s"
    )
    made = found(text)
    assert made["compile_cache_hit"].severity == "info"
    assert "VLLM_CACHE_ROOT" not in (made["compile"].remedy or "")


BAR = "Loading safetensors checkpoint shards: {percent}% Completed | {done}/{total} [{clock}<28:59, 21.48s/it]\n"


def bars(total: int, *clocks: str) -> str:
    lines = (BAR.format(percent=100 * done // total, done=done, total=total, clock=c) for done, c in enumerate(clocks))
    return "".join(lines)


def test_a_cached_head_before_a_slow_rest_proves_the_storage(found) -> None:
    text = (
        ENGINE
        + line("00:00", "Starting to load model m...")
        + bars(86, "00:00", "00:00", "00:00", "00:59", "02:27", "05:06")
    )
    made = found(text)
    assert made["storage_bound"].status == "modelled"
    assert "slow and not hung" in made["storage_bound"].sentence
    assert made["unfinished"].sentence.startswith("The log ends while weights_load is still going on (5 of 86 parts)")
    assert "failed" not in made and "weights_load" not in made


def test_an_even_pace_of_ordinary_speed_proves_nothing(found) -> None:
    text = (
        ENGINE + line("00:00", "Starting to load model m...") + bars(20, *[f"00:{3 * part:02}" for part in range(15)])
    )
    assert "storage_bound" not in found(text)


def test_few_bytes_in_long_time_prove_the_storage(found) -> None:
    text = ENGINE + line("00:40", "Loading weights took 38.50 seconds")
    text += line("00:41", "Model loading took 14.99 GiB memory and 39.300000 seconds")
    bound = found(text)["storage_bound"]
    assert "399 MiB/s" in bound.sentence
    assert bound.saves == pytest.approx(38.5 - 14.99 * 2**30 / 1e9, abs=0.01)


def test_bytes_of_one_of_several_workers_prove_nothing(found) -> None:
    text = worker(0, "00:00", "Starting to load model m...")
    text += worker(0, "00:41", "Model loading took 14.99 GiB memory and 39.300000 seconds")
    assert "storage_bound" not in found(text)


def test_a_worker_that_loads_far_longer_than_the_others_is_a_straggler(found) -> None:
    text = "".join(worker(rank, "00:00", "Starting to load model m...") for rank in range(4))
    for rank, seconds in ((0, 22), (1, 24), (2, 23), (3, 41)):
        text += worker(rank, f"00:{seconds}", f"Model loading took 17.19 GiB memory and {seconds - 0.5:.6f} seconds")
    late = found(text)["straggler"]
    assert "Worker TP3" in late.sentence
    assert late.saves == pytest.approx(18.0)


def test_workers_that_differ_little_are_no_stragglers(found) -> None:
    text = "".join(worker(rank, "00:00", "Starting to load model m...") for rank in range(2))
    text += worker(0, "00:22", "Model loading took 17.19 GiB memory and 21.500000 seconds")
    text += worker(1, "00:31", "Model loading took 17.19 GiB memory and 30.500000 seconds")
    assert "straggler" not in found(text)


def test_missing_lines_make_no_straggler(found) -> None:
    ranks = "".join(
        f"[2025-02-18 08:52:3{rank} TP{rank}] Load weight end. type=M, avail mem=20 GB\n" for rank in range(3)
    )
    text = ranks + "[2025-02-18 08:52:40 TP5] Capture cuda graph begin. This can take up to several minutes.\n"
    assert not {"straggler", "weights_load", "graph_capture", "failed"} & set(found(text))


def test_sglang_is_told_its_own_flags(found) -> None:
    text = "[2025-02-18 08:52:00 TP0] Load weight begin. avail mem=78.50 GB\n"
    text += "[2025-02-18 08:52:05 TP0] Load weight end. type=M, avail mem=20 GB\n"
    text += "[2025-02-18 08:52:45 TP0] Capture cuda graph end. Time elapsed: 39.50 s\n"
    capture = found(text)["graph_capture"]
    assert "--cuda-graph-max-bs" in (capture.remedy or "")
    assert "enforce-eager" not in (capture.remedy or "")


def test_a_failed_start_is_quoted(found) -> None:
    text = ENGINE + line("00:02", "Starting to load model m...")
    text += "ERROR 03-11 08:00:40 [core.py:1] EngineCore failed to start.\n"
    made = found(text)
    assert made["failed"].severity == "high"
    assert made["failed"].evidence[0].endswith("server.log:3")
    assert "unfinished" not in made


def test_two_lengths_for_one_phase_are_both_named(found) -> None:
    text = (
        ENGINE
        + line("00:30", "torch.compile takes 7.51 s in total")
        + line("00:30", "torch.compile takes 31.00 s in total")
    )
    text += line("00:50", "Graph capturing finished in 17 secs, took 0.48 GiB")
    text += line("00:50", "init engine (profile, create kv cache, warmup model) took 34.11 seconds")
    conflict = found(text)["conflicting_durations"]
    assert "7.51 s and 31 s" in conflict.sentence
    assert [place.rsplit(":", 1)[1] for place in conflict.evidence] == ["2", "3"]


def test_a_part_longer_than_what_encloses_it_is_a_conflict(found) -> None:
    text = ENGINE + line("00:50", "Loading weights took 30.00 seconds")
    text += line("00:50", "Model loading took 14.99 GiB memory and 12.000000 seconds")
    assert "30 s, more than the 12 s of weights_load" in found(text)["conflicting_durations"].sentence


def test_stamps_a_second_apart_are_no_conflict(found) -> None:
    text = ENGINE + line("00:02", "Starting to load model m...") + line("00:13", "Loading weights took 8.23 seconds")
    text += line("00:14", "Model loading took 17.19 GiB memory and 11.075773 seconds")
    assert "conflicting_durations" not in found(text)


def test_time_before_the_engine_begins_is_the_process(found) -> None:
    text = line("00:00", "non-default args: {'model': 'm'}") + ENGINE.replace("00:00", "00:40")
    text += line("01:00", "Model loading took 50.0 GiB and 19.000000 seconds")
    assert "40 s" in found(text)["process"].sentence


def test_several_starts_are_told_apart(found) -> None:
    run = "Graph capturing finished in 40 secs, took 0.32 GiB\n"
    run += "init engine (profile, create kv cache, warmup model) took 50.00 seconds\n"
    made = found(f"$ vllm serve m\n{run}\n$ vllm serve m\n{run}")
    assert made["graph_capture"].sentence.startswith("start-2: ")


def test_what_many_starts_share_is_told_once_for_the_worst(found) -> None:
    runs = "".join(
        f"$ vllm serve m\nGraph capturing finished in {seconds} secs, took 0.32 GiB\n"
        "init engine (profile, create kv cache, warmup model) took 200.00 seconds\n\n"
        for seconds in (40, 60, 180, 50, 45)
    )
    shared = found(runs)["graph_capture"]
    assert shared.sentence.startswith("start-3: ")
    assert shared.sentence.endswith("The same is found 4 more times.")


CASES = Path(__file__).parents[3] / "shared" / "cases"


@pytest.mark.parametrize(
    ("case", "has", "lacks"),
    [
        ("01-vllm-unlogged-tail", {"graph_capture", "unlogged", "compile_cache_hit"}, {"failed"}),
        ("05-vllm-undated-two-runs", {"compile", "compile_cache_miss"}, {"failed"}),
        ("08-vllm-ray-405b-shards-slow", {"storage_bound", "unfinished"}, {"failed"}),
        ("11-sglang-midnight-rollover", {"unfinished"}, {"straggler", "graph_capture", "unlogged"}),
        ("13-sglang-dp-tqdm-glued", {"graph_capture"}, {"failed", "unfinished"}),
        ("21-vllm-ray-dedup-out-of-order", {"straggler", "unfinished"}, {"failed", "weights_load"}),
    ],
)
def test_field_cases(found, case: str, has: set[str], lacks: set[str]) -> None:
    path = CASES / f"{case}.log"
    if not path.exists():
        pytest.skip("the field cases are not beside this checkout")
    names = set(found(path.read_text(encoding="utf-8")))
    assert has <= names
    assert not lacks & names


def test_workers_that_only_tell_of_reading_are_compared_and_their_load_is_bounded(found) -> None:
    text = ENGINE
    for rank, (clock, seconds) in enumerate((("00:23", 22.0), ("00:25", 24.0), ("00:24", 23.0), ("00:42", 40.0))):
        text += worker(rank, clock, f"Loading weights took {seconds:.2f} seconds")
    text += line("01:00", "Application startup complete.")
    told = found(text)
    assert "Worker TP3 loads its weights in 40 s, the others in 23 s" in told["straggler"].sentence
    assert told["weights_load"].status == "bounded"
    assert "at least" in told["weights_load"].sentence


def test_an_hour_that_is_told_twice_is_no_length_of_a_start(found) -> None:
    """The end of summer time in a log without a zone: nine o'clock becomes eight."""
    text = ENGINE.replace("08:00:00", "08:59:45") + line("00:15", "Loading weights took 20.00 seconds")
    told = found(
        text + line("00:16", "Model loading took 14.2 GiB and 21.500000 seconds") + "Application startup complete.\n"
    )
    assert "was set back" in told["data.clock_conflict"].sentence
    assert "unlogged" not in told
    assert "of the start" not in told["weights_load"].sentence


def test_a_length_that_nobody_can_believe_is_named_and_not_ranked(found) -> None:
    text = (
        ENGINE + line("00:30", "Loading weights took 86400.00 seconds") + line("00:40", "Application startup complete.")
    )
    told = found(text)
    assert (
        "24 h 0 min" in told["conflicting_durations"].sentence
        and "not believed" in told["conflicting_durations"].sentence
    )
    assert "weights_load" not in told and "storage_bound" not in told
