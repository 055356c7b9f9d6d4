"""Traces of requests, and tables of the user's own: what is read of them, and what is refused."""

from __future__ import annotations

import gzip
import json
import math
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest

import infer_diag as diag
from infer_diag.errors import DiagError, LogFormatError, SourceError, UnknownNameError
from infer_diag.recording import Recording

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW_BURST = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def loaded(tmp_path: Path, text: str, name: str = "any.txt", **options: object) -> Recording:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return diag.load(path, **options)  # type: ignore[arg-type]


def findings(recording: Recording) -> set[str]:
    return {finding.id for finding in diag.diagnose(recording).findings}


class TestAzure:
    def test_seven_digits_are_read(self, tmp_path: Path) -> None:
        text = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
        recording = loaded(tmp_path, text)
        assert recording.sources[0].format == "azure-llm"
        assert recording.requests["arrival_s"].to_list() == [0.0, pytest.approx(0.052)]
        assert recording.requests["prompt_tokens"].to_list() == [4808, 3180]
        assert recording.requests["output_tokens"].to_list() == [10, 8]
        assert recording.requests["line"].to_list() == [2, 3]
        assert recording.sources[0].first_time == datetime(2023, 11, 16, 18, 17, 3, 979960, tzinfo=UTC)

    def test_a_zone_is_heard(self, tmp_path: Path) -> None:
        text = AZURE + "2024-05-10 00:00:00.009930+02:00,1,2\n2024-05-09 22:00:01+00:00,3,4\n"
        recording = loaded(tmp_path, text)
        assert recording.requests["arrival_s"].to_list() == [0.0, pytest.approx(0.99007)]
        assert recording.sources[0].clocks[0].zone == "+02:00"

    def test_the_stated_zone_is_for_stamps_without_one(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, AZURE + "2023-11-16 08:00:00.0000000,1,2\n", tz="Asia/Shanghai")
        assert recording.sources[0].first_time == datetime(2023, 11, 16, 0, 0, tzinfo=UTC)

    def test_images_compression_and_windows_line_ends(self, tmp_path: Path) -> None:
        text = "\ufeffTIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n2025-01-01 00:00:00,3,7,2\r\n"
        path = tmp_path / "multimodal.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
        assert diag.load(path).requests.select("prompt_tokens", "output_tokens").row(0) == (7, 2)

    def test_the_order_of_rows_does_not_matter(self, tmp_path: Path) -> None:
        rows = [f"2024-05-10 00:00:{second:02d}.0000000,{second},1" for second in range(0, 50, 7)]
        shuffled = random.Random(1).sample(rows, len(rows))
        told = [loaded(tmp_path, AZURE + "\n".join(each) + "\n") for each in (rows, shuffled)]
        first, second = (each.requests.sort("arrival_s").drop("line", "request_id") for each in told)
        assert first.equals(second)
        assert first["arrival_s"].to_list() == first["prompt_tokens"].cast(pl.Float64).to_list()

    def test_damaged_rows_are_kept_apart(self, tmp_path: Path) -> None:
        bad = [
            "yesterday,1,2",
            "2024-05-10 00:00:01,minus,3",
            "2024-05-10 00:00:02,-4,3",
            "2024-05-10 00:00:03,1.5,3",
            "x",
        ]
        text = AZURE + "2024-05-10 00:00:00,1,2\n" + AZURE + "\n".join(bad) + "\n\n2024-05-10 00:00:09,5,6\n"
        recording = loaded(tmp_path, text)
        assert recording.requests["line"].to_list() == [2, 10]
        assert recording.rejected["line"].to_list() == [4, 5, 6, 7, 8]
        assert "data.rejected_lines" in findings(recording)
        with pytest.raises(LogFormatError, match=":4"):
            loaded(tmp_path, text, strict=True)

    def test_it_is_finished_requests_and_no_times(self, tmp_path: Path) -> None:
        document = diag.diagnose(loaded(tmp_path, AZURE + "2024-05-10 00:00:00,1,2\n" * 3)).to_dict()
        assert document["serving"]["requests"]["count"] == 3
        assert document["serving"]["requests"]["e2e_s"] is None
        assert document["serving"]["requests"]["output_tokens"]["mean"] == 2.0


class TestBurstGpt:
    def test_failures_have_no_output(self, tmp_path: Path) -> None:
        text = BURST + "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n"
        requests = loaded(tmp_path, text).requests
        assert requests["arrival_s"].to_list() == [0.0, 40.0]
        assert requests["output_tokens"].to_list() == [18, None]
        assert requests["finish_reason"].to_list() == [None, "failed"]
        assert requests["last_token_s"].null_count() == 2

    def test_elapsed_time_ends_the_response(self, tmp_path: Path) -> None:
        text = (
            NEW_BURST
            + "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n19440161.0,d5,2,ChatGPT,36,0,36,API log\n"
        )
        recording = loaded(tmp_path, text)
        assert recording.requests["last_token_s"].to_list() == [43.0, None]
        assert recording.sources[0].first_time is None

    def test_sums_that_do_not_add_up_are_said(self, tmp_path: Path) -> None:
        recording = loaded(tmp_path, BURST + "5,ChatGPT,10,5,15,x\n6,ChatGPT,10,5,16,x\n")
        assert "1 of 2 rows (first in line 3)" in recording.sources[0].doubts[0]
        assert "data.implausible" in findings(recording)
        assert "data.implausible" not in findings(loaded(tmp_path, BURST + "5,ChatGPT,10,5,15,x\n"))


class TestMooncake:
    def test_milliseconds_become_seconds(self, tmp_path: Path) -> None:
        lines = [
            {"timestamp": 27482 + 1500 * k, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
            for k in (0, 1)
        ]
        recording = loaded(tmp_path, "\n".join(map(json.dumps, lines)))
        assert recording.sources[0].format == "mooncake"
        assert recording.requests["arrival_s"].to_list() == [0.0, 1.5]
        assert recording.requests["cached_tokens"].null_count() == 2

    def test_a_cut_line_is_damaged(self, tmp_path: Path) -> None:
        good = json.dumps({"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": []})
        recording = loaded(tmp_path, f"{good}\n{good[:30]}\n{{}}\n{good[:-1]}")
        assert len(recording.requests) == 1
        assert recording.rejected["line"].to_list() == [2, 3, 4]

    def test_lines_may_be_long(self, tmp_path: Path) -> None:
        text = json.dumps({"timestamp": 1, "input_length": 9, "hash_ids": list(range(50_000)), "output_length": 3})
        assert loaded(tmp_path, text).requests["output_tokens"].to_list() == [3]


class TestRecordedRuns:
    def run(self, wall: float = 1_787_267_980.0) -> str:
        rows = [
            {"request_id": f"bench-{k}", "input_toks": 10, "output_toks": 3, "arrival_time": wall + k,
             "queued_ts": 500.0 + k, "scheduled_ts": 501.0 + k, "first_token_ts": 501.5 + k, "last_token_ts": 502.5 + k}
            for k in range(3)
        ]  # fmt: skip
        return "\n".join(map(json.dumps, rows))

    def test_durations_lie_on_one_clock(self, tmp_path: Path) -> None:
        told = [diag.diagnose(loaded(tmp_path, self.run(wall))).to_dict() for wall in (1_787_267_980.0, 12.0)]
        for document in told:
            requests = document["serving"]["requests"]
            assert requests["queue_s"]["p50"] == pytest.approx(1.0)
            assert requests["ttft_s"]["p50"] == pytest.approx(1.5)
            assert requests["tpot_s"]["p50"] == pytest.approx(0.5)
            assert document["serving"]["shares"]["queue"] == pytest.approx(0.4)

    def test_the_note_says_what_counts_as_arrival(self, tmp_path: Path) -> None:
        document = diag.diagnose(loaded(tmp_path, self.run())).to_dict()
        assert any("when the engine queued it" in note for note in document["sources"][0]["notes"])

    @pytest.mark.parametrize(("share", "doubted"), [("0.0", True), ("0.01", False)])
    def test_a_column_that_was_never_filled_is_not_used(self, tmp_path: Path, share: str, doubted: bool) -> None:
        rows = "".join(f"{t}.0,100.0,50.0,{20 + t},0,{share}\n" for t in range(1, 9))
        recording = loaded(tmp_path, "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n" + rows)
        assert (recording.engine_samples["kv_usage_ratio"].null_count() == 8) == doubted
        assert ("data.implausible" in findings(recording)) == doubted
        assert diag.diagnose(recording).to_dict()["serving"]["window_s"] == 7.0

    def test_an_idle_engine_has_an_empty_pool(self, tmp_path: Path) -> None:
        rows = "".join(f"{t}.0,0.0,0.0,1,0,0.0\n" for t in range(1, 9))
        recording = loaded(tmp_path, "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n" + rows)
        assert recording.engine_samples["kv_usage_ratio"].to_list() == [0.0] * 8

    def test_the_set_up(self, tmp_path: Path) -> None:
        meta = {"model": "org/m", "vllm_version": "0.19.0", "started_at": "2026-08-20T23:19:39.99Z",
                "engine_kwargs": {"tensor_parallel_size": 2, "data_parallel_size": 2, "max_num_seqs": 256, "dtype": "bf16"},
                "kv_cache": {"num_gpu_blocks": 100, "block_size": 16}}  # fmt: skip
        recording = loaded(tmp_path, json.dumps(meta, indent=2))
        row = recording.deployments.row(0, named=True)
        assert (row["gpu_count"], row["data_parallel_count"]) == (2, 2)
        assert (row["kv_cache_tokens"], row["max_running_count"]) == (1600, 256)
        assert (recording.sources[0].engine_version, recording.sources[0].dated) == ("0.19.0", True)


class TestOwnTable:
    COLUMNS: ClassVar[dict[str, str]] = {
        "request_id": "id",
        "arrival_s": "start",
        "first_token_s": "first",
        "output_tokens": "n",
    }

    def test_csv_with_dates(self, tmp_path: Path) -> None:
        text = (
            'id,start,first,n,why\na,2026-01-02 03:04:05.5,2026-01-02 03:04:06,7,"x, ""y"""\nb,2026-01-02 03:04:06,,\n'
        )
        recording = loaded(tmp_path, text, format="table", columns=self.COLUMNS)
        assert recording.requests["first_token_s"].to_list() == [0.5, None]
        assert recording.requests["request_id"].to_list() == ["a", "b"]
        assert recording.requests["line"].to_list() == [2, 3]
        assert recording.sources[0].first_time == datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)

    @pytest.mark.parametrize("scale", [1, 1_000, 1_000_000, 1_000_000_000])
    def test_epochs_tell_their_unit_by_their_size(self, tmp_path: Path, scale: int) -> None:
        text = f"id,start,first,n\na,{1_767_225_600 * scale},{1_767_225_602 * scale},7\n"
        recording = loaded(tmp_path, text, format="table", columns=self.COLUMNS)
        assert recording.requests["first_token_s"].to_list() == [pytest.approx(2.0, abs=1e-6)]
        assert recording.sources[0].first_time == datetime(2026, 1, 1, tzinfo=UTC)

    def test_small_numbers_are_seconds_unless_said_otherwise(self, tmp_path: Path) -> None:
        text = "id,start,first,n\na,5000,7000,7\n"
        plain = loaded(tmp_path, text, format="table", columns=self.COLUMNS)
        in_ms = self.COLUMNS | {"arrival_s": ("start", "ms"), "first_token_s": ("first", "ms")}
        assert plain.requests["first_token_s"].to_list() == [2000.0]
        assert loaded(tmp_path, text, format="table", columns=in_ms).requests["first_token_s"].to_list() == [2.0]
        assert plain.sources[0].first_time is None

    def test_durations_are_taken_by_name(self, tmp_path: Path) -> None:
        text = "start;ttft;total\n1;12,5;100\n2;25,5;300\n"
        columns = {"arrival_s": "start", "ttft_s": ("ttft", "ms"), "e2e_s": ("total", "ms")}
        recording = loaded(tmp_path, text, format="table", columns=columns)
        assert recording.request_timings["ttft_s"].to_list() == pytest.approx([0.0125, 0.0255])
        requests = diag.diagnose(recording).to_dict()["serving"]["requests"]
        assert (requests["count"], requests["e2e_s"]["mean"]) == (2, 0.2)

    def test_json_lines_and_parquet_tell_the_same(self, tmp_path: Path) -> None:
        rows = [{"id": "a", "start": 10.0, "first": 10.25, "n": 3}, {"id": "b", "start": 11.0, "first": None, "n": 4}]
        lines = loaded(tmp_path, "\n".join(map(json.dumps, rows)), format="table", columns=self.COLUMNS)
        pl.DataFrame(rows).write_parquet(tmp_path / "t.parquet")
        table = diag.load(tmp_path / "t.parquet", format="table", columns=self.COLUMNS)
        assert lines.requests.drop("line").equals(table.requests.drop("line"))
        assert table.requests["line"].to_list() == [0, 0]

    def test_cells_that_cannot_be_read_are_counted(self, tmp_path: Path) -> None:
        text = "id,start,first,n\na,1,2,many\nb,2,3,4\nc,x,y,z\n"
        recording = loaded(tmp_path, text, format="table", columns=self.COLUMNS)
        assert "2 of 3 cells of 'n' cannot be read as output_tokens" in recording.sources[0].notes
        assert recording.rejected["line"].to_list() == [4]

    def test_two_clocks_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DiagError, match="different clocks"):
            loaded(tmp_path, "id,start,first,n\na,1767225600,12.5,7\n", format="table", columns=self.COLUMNS)

    @pytest.mark.parametrize(
        ("columns", "error", "words"),
        [
            ({"arrived": "start"}, UnknownNameError, "arrival_s"),
            ({"arrival_s": "begin"}, SourceError, "no column 'begin'"),
            ({"arrival_s": ("start", "fortnights")}, DiagError, "fortnights"),
            ({"output_tokens": ("n", "s")}, DiagError, "cannot be in"),
            ({"request_id": "id"}, DiagError, "nothing that is measured"),
            ({"last_token_s": "first", "e2e_s": "n"}, DiagError, "contradict"),
        ],
    )
    def test_mappings_that_make_no_sense(
        self, tmp_path: Path, columns: dict[str, str], error: type[DiagError], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            loaded(tmp_path, "id,start,first,n\na,1,2,7\n", format="table", columns=columns)

    def test_a_mapping_needs_its_format(self, tmp_path: Path) -> None:
        with pytest.raises(DiagError, match="belong together"):
            loaded(tmp_path, AZURE, columns={"arrival_s": "TIMESTAMP"})
        with pytest.raises(DiagError, match="belong together"):
            loaded(tmp_path, AZURE, format="table")


class TestHostileParquet:
    COLUMNS: ClassVar[dict[str, str]] = {"arrival_s": "a"}

    def refused(self, path: Path) -> str:
        with pytest.raises(SourceError) as error:
            diag.load(path, format="table", columns=self.COLUMNS)
        return str(error.value)

    @pytest.mark.parametrize("value", [[1, 2], {"b": 1}, b"\x00raw", [["x"]]])
    def test_columns_of_other_kinds(self, tmp_path: Path, value: object) -> None:
        pl.DataFrame({"a": [value]}).write_parquet(tmp_path / "a.parquet")
        assert "not numbers, text or dates" in self.refused(tmp_path / "a.parquet")

    def test_damaged_files(self, tmp_path: Path) -> None:
        pl.DataFrame({"a": list(range(1000))}).write_parquet(tmp_path / "good.parquet")
        data = (tmp_path / "good.parquet").read_bytes()
        for number, broken in enumerate(
            (data[: len(data) // 2], data[:4] + data[200:], b"PAR1" + b"\xff" * 300 + b"PAR1")
        ):
            path = tmp_path / f"{number}.parquet"
            path.write_bytes(broken)
            assert "no Parquet file" in self.refused(path)

    def test_without_a_mapping_it_says_what_to_do(self, tmp_path: Path) -> None:
        pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
        with pytest.raises(SourceError, match="columns="):
            diag.load(tmp_path / "a.parquet")

    def test_compressed_once_more(self, tmp_path: Path) -> None:
        pl.DataFrame({"a": [3.0, 1.0]}).write_parquet(tmp_path / "a.parquet")
        (tmp_path / "a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
        recording = diag.load(tmp_path / "a.parquet.gz", format="table", columns=self.COLUMNS)
        assert recording.requests["arrival_s"].to_list() == [2.0, 0.0]


def test_a_moment_that_no_calendar_holds_is_no_error(tmp_path: Path) -> None:
    columns = {"arrival_s": ("a", "h"), "output_tokens": "b"}
    recording = loaded(tmp_path, "a,b\n1e300,1\n-5,2\nnan,3\ninf,4\n", format="table", columns=columns)
    assert all(value is None or math.isfinite(value) for value in recording.requests["arrival_s"])
    assert len(recording.requests) == 4
