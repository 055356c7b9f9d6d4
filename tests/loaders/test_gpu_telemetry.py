"""What tools tell of devices: dcgm-exporter, dcgmi, and nvidia-smi in its shapes."""

from __future__ import annotations

import codecs
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import infer_diag as diag
from infer_diag.attribution.gpu_memory import gpu_memory
from infer_diag.errors import DiagError, SourceError
from infer_diag.recording import Recording

MIB = 1 << 20
DCGMI = """#Entity   FBUSD        FBFRE   GPUTL  SMACT  DRAMA  POWER
ID                                            W
GPU 0     71234        8000    97     0.812  0.455  310.200
GPU-I 3   1000         N/A     N/A    0.200  0.100  N/A
GPU 1     N/A          N/A     0      0.000  0.000  57.430
#Entity   FBUSD        FBFRE   GPUTL  SMACT  DRAMA  POWER
ID
GPU 0     71236        7998    97     0.900  0.455  312.500
"""
QUERY = """timestamp, index, name, uuid, memory.used [MiB], memory.free [MiB], utilization.gpu [%], power.draw [W]
2026/03/14 09:26:53.589, 0, NVIDIA H100 80GB HBM3, GPU-aa, 71234 MiB, 100 MiB, 97 %, 310.22 W
2026/03/14 09:26:53.591, 1, NVIDIA H100 80GB HBM3, GPU-bb, [N/A], [Not Supported], 97 %, [Unknown Error]
2026/03/14 09:26:54.589, 0, NVIDIA H100 80GB HBM3, GPU-aa, 71300 MiB, 34 MiB, 97 %, 308.00 W
"""
DMON = """#Date       Time        gpu   pwr gtemp mtemp    sm   mem   enc   dec  mclk  pclk    fb  bar1
#YYYYMMDD   HH:MM:SS    Idx     W     C     C     %     %     %     %   MHz   MHz    MB    MB
 20260102   23:59:59      0    37    19     -     0     0     0     0  4006   582   100     2
 20260103   00:00:00      0    39    19     -     0     0     0     0  4006   158   200     2
"""


def read(tmp_path: Path, text: str | bytes, name: str = "gpu.txt", **options: object) -> Recording:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return diag.load(path, **options)


def used(recording: Recording) -> list[tuple[str, float | None]]:
    rows = recording.gpu_samples.select("gpu", "used_bytes").iter_rows()
    return [(gpu, size / MIB if size is not None else None) for gpu, size in rows]


def exporter(*series: str, name: str = "DCGM_FI_DEV_FB_USED") -> str:
    return "".join(f"{name}{{{labels}}} {100 + number}\n" for number, labels in enumerate(series))


def test_partitions_of_one_device_stand_apart(tmp_path: Path) -> None:
    series = [f'gpu="0",UUID="GPU-a",GPU_I_PROFILE="1g.6gb",GPU_I_ID="{instance}"' for instance in (3, 4)]
    text = exporter(*series, 'gpu="0",UUID="GPU-a"', 'gpu="1",UUID="GPU-b",GPU_I_ID="3"')
    rows = read(tmp_path, text).gpu_samples.select("gpu", "instance", "used_bytes").rows()
    expected = [("0", "3", 100), ("0", "4", 101), ("0", None, 102), ("1", "3", 103)]
    assert set(rows) == {(gpu, instance, size * MIB) for gpu, instance, size in expected}


@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_devices_of_two_hosts_stand_apart(tmp_path: Path, label: str) -> None:
    text = exporter(*(f'gpu="0",{label}="node-{host}"' for host in "ab"))
    assert used(read(tmp_path, text)) == [("node-a/0", 100), ("node-b/0", 101)]


def test_two_devices_under_one_index_stand_apart(tmp_path: Path) -> None:
    assert used(read(tmp_path, exporter('gpu="0",UUID="GPU-a"', 'gpu="0",UUID="GPU-b"'))) == [
        ("0 GPU-a", 100),
        ("0 GPU-b", 101),
    ]


def test_a_device_that_pods_share_counts_once(tmp_path: Path) -> None:
    text = "".join(f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-a",pod="{pod}"}} 500\n' for pod in "ab")
    assert used(read(tmp_path, text)) == [("0", 500)]


def test_units_of_the_exporter(tmp_path: Path) -> None:
    names = {
        "DEV_FB_FREE": 10,
        "DEV_FB_RESERVED": 3,
        "PROF_SM_ACTIVE": 0.5,
        "PROF_DRAM_ACTIVE": 0.25,
        "DEV_POWER_USAGE": 300,
    }
    text = "".join(f'DCGM_FI_{name}{{gpu="0"}} {value}\n' for name, value in names.items())
    row = read(tmp_path, text).gpu_samples.row(0, named=True)
    assert (row["free_bytes"], row["reserved_bytes"]) == (10 * MIB, 3 * MIB)
    assert (row["sm_active_ratio"], row["dram_active_ratio"], row["power_w"]) == (0.5, 0.25, 300.0)
    assert row["used_bytes"] is None


def test_an_xid_is_told_when_it_comes_and_not_as_long_as_it_sticks(tmp_path: Path) -> None:
    text = "".join(
        f'# scrape 2026-03-14T09:26:{second:02d}Z\nDCGM_FI_DEV_XID_ERRORS{{gpu="0"}} {value}\n'
        for second, value in enumerate([0, 79, 79, 31])
    )
    assert read(tmp_path, text).incidents["fields"].to_list() == ["xid=79 gpu=0", "xid=31 gpu=0"]


def test_dcgmi_has_columns_by_name_and_no_stamps(tmp_path: Path) -> None:
    recording = read(tmp_path, DCGMI)
    assert recording.sources[0].format == "dcgmi"
    assert used(recording) == [("0", 71234), ("GPU-I 3", 1000), ("1", None), ("0", 71236)]
    assert recording.gpu_samples["sm_active_ratio"].to_list() == [0.812, 0.2, 0.0, 0.9]
    assert recording.gpu_samples["power_w"].to_list() == [310.2, None, 57.43, 312.5]
    assert recording.gpu_samples["instance"].to_list() == [None, "3", None, None]
    assert recording.gpu_samples["time"].null_count() == 4
    assert recording.rejected.is_empty()


def test_a_cut_row_is_kept_as_rejected(tmp_path: Path) -> None:
    recording = read(tmp_path, DCGMI + "GPU 0     712")
    assert recording.rejected["line"].to_list() == [9]
    assert len(recording.gpu_samples) == 4


@pytest.mark.parametrize(
    "text",
    [
        QUERY,
        QUERY.replace(" MiB,", ",").replace(" %", "").replace(" W\n", "\n"),
        QUERY.replace(", ", ";").replace(".22 W", ",22 W").replace(".00 W", ",00 W"),
        QUERY.replace(", ", ","),
        QUERY.replace("\n", "\r\n"),
        codecs.BOM_UTF16_LE + QUERY.encode("utf-16-le"),
        QUERY + QUERY.splitlines()[0] + "\n",
    ],
    ids=["plain", "nounits", "semicolons", "tight", "crlf", "utf-16", "header again"],
)
def test_a_query_reads_alike_in_every_dress(tmp_path: Path, text: str | bytes) -> None:
    recording = read(tmp_path, text)
    assert used(recording) == [("0", 71234), ("1", None), ("0", 71300)]
    assert recording.gpu_samples["free_bytes"].to_list() == [100 * MIB, None, 34 * MIB]
    assert recording.gpu_samples["power_w"].to_list() == [310.22, None, 308.0]
    assert recording.gpu_samples["time"].diff().dt.total_milliseconds().to_list()[1:] == [2, 998]


def test_a_query_without_its_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="header"):
        read(tmp_path, QUERY.split("\n", 1)[1])


def test_devices_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    stamp = "2026/03/14 09:26:53.589"
    text = f"timestamp, name, memory.used [MiB]\n{stamp}, H100, 5 MiB\n{stamp}, H100, 6 MiB\n"
    with pytest.raises(SourceError, match="tells its GPUs apart"):
        read(tmp_path, text)
    lone = f"timestamp, memory.used [MiB]\n{stamp}, 5 MiB\n{stamp.replace('53', '54')}, 6 MiB\n"
    assert used(read(tmp_path, lone)) == [("unknown", 5), ("unknown", 6)]


def test_dmon_with_dates_and_without(tmp_path: Path) -> None:
    recording = read(tmp_path, DMON)
    assert used(recording) == [("0", 100), ("0", 200)]
    assert recording.gpu_samples["time"].diff().dt.total_seconds().to_list()[1:] == [1]
    bare = "# gpu   pwr gtemp    sm    fb\n# Idx     W     C     %    MB\n    0    70    48     5   300\n    1     -    48    11   400\n"
    recording = read(tmp_path, bare, "bare.txt")
    assert used(recording) == [("0", 300), ("1", 400)]
    assert recording.gpu_samples["power_w"].to_list() == [70.0, None]
    assert recording.gpu_samples["time"].null_count() == 2


def test_a_clock_without_a_date_passes_midnight(tmp_path: Path) -> None:
    text = "#Time        gpu    pwr     fb\n#HH:MM:SS    Idx      W     MB\n 23:59:59      0     70    300\n 00:00:01      0     70    310\n"
    assert read(tmp_path, text).gpu_samples["time"].diff().dt.total_seconds().to_list()[1:] == [2]


def test_a_list_of_processes_is_no_devices_memory(tmp_path: Path) -> None:
    text = """# gpu        pid  type    sm   mem   enc   dec    fb   command
# Idx          #   C/G     %     %     %     %    MB   name
    0       4673     C    90    40     -     -  7000   python serve.py
    0       4765     G     0     0     -     -     4   Xorg
    1          -     -     -     -     -     -     -   -
"""
    recording = read(tmp_path, text)
    assert used(recording) == [("0", None), ("1", None)]
    sentences = [finding.sentence for finding in diag.diagnose(recording).findings]
    assert any("hold no memory" in sentence for sentence in sentences)


def test_growth_is_last_minus_first_per_device(tmp_path: Path) -> None:
    memory = gpu_memory(read(tmp_path, QUERY))
    rows = memory.select("gpu", "sample_count", "used_bytes", "growth_bytes").rows()
    assert rows == [("0", 2, 71300 * MIB, 66 * MIB), ("1", 1, None, None)]


def test_growth_follows_time_and_not_the_order_of_lines(tmp_path: Path) -> None:
    header, *rows = QUERY.splitlines()
    memory = gpu_memory(read(tmp_path, "\n".join([header, *reversed(rows)]) + "\n"))
    assert memory.filter(gpu="0")["growth_bytes"].to_list() == [66 * MIB]


@pytest.mark.parametrize(("last", "expected"), [(9000, True), (1100, False), (500, False)])
def test_growth_is_told_without_a_cause(tmp_path: Path, last: int, expected: bool) -> None:
    text = "".join(
        f"# scrape 2026-03-14T09:26:{second:02d}Z\n"
        f'DCGM_FI_DEV_FB_USED{{gpu="0"}} {size}\nDCGM_FI_DEV_FB_FREE{{gpu="0"}} {80000 - size}\n'
        for second, size in enumerate([1000, 5000, last])
    )
    ids = [finding.id for finding in diag.diagnose(read(tmp_path, text)).findings]
    assert ("memory.growth_undetermined" in ids) is expected
    assert "memory.growth" not in ids


def test_totals_never_tell_fragmentation(tmp_path: Path) -> None:
    findings = diag.diagnose(read(tmp_path, QUERY)).findings
    refusals = [finding for finding in findings if finding.id == "data.not_identifiable"]
    assert any("snapshot" in (finding.remedy or "") for finding in refusals)
    assert not any(finding.id == "memory.fragmentation" for finding in findings)


LINES = [*DCGMI.splitlines(), *QUERY.splitlines(), *DMON.splitlines(), "", "GPU 0", "    0"]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(LINES) | st.text(max_size=30), max_size=20),
    st.sampled_from(["dcgmi", "nvidia-smi", "nvidia-smi-dmon"]),
)
def test_any_text_is_read_or_refused(tmp_path: Path, lines: list[str], format: str) -> None:
    try:
        recording = read(tmp_path, "\n".join(lines), format=format)
    except DiagError:
        return
    assert diag.diagnose(recording).to_json()
    assert recording.gpu_samples.select(pl.col("power_w").is_nan().any()).item() in (None, False)
