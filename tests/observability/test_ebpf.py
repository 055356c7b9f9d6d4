"""The bpftrace scripts: bounded and clean by their text, taken by bpftrace, and read back where one can be run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import infer_diag as diag
from infer_diag.cli import app
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.loaders.allocator.bpftrace import histograms
from infer_diag.observability.ebpf import names, script, scripts

BPFTRACE, COMPILER = shutil.which("bpftrace"), shutil.which("gcc") or shutil.which("cc")
needs_bpftrace = pytest.mark.skipif(
    BPFTRACE is None or COMPILER is None or os.geteuid() != 0, reason="needs bpftrace, a C compiler and root"
)
DRIVER = """
typedef unsigned long long address;
static address next = 0x7f0000000000ULL;
int cuMemAlloc_v2(address *p, unsigned long n) { if (n > (1UL << 40)) return 2; *p = next; next += n; return 0; }
int cuMemFree_v2(address p) { return 0; }
int cuLaunchKernel(void *f) { return 0; }
int cuModuleLoadData(void **m, const void *image) { return 0; }
"""
PROGRAM = """
typedef unsigned long long address;
int cuMemAlloc_v2(address *p, unsigned long n); int cuMemFree_v2(address p); int cuLaunchKernel(void *f);
int cuModuleLoadData(void **m, const void *image);
int main(void) {
  address p = 0; void *m; cuModuleLoadData(&m, 0);
  for (int i = 1; i <= 5; i++) { cuMemAlloc_v2(&p, i * 1024UL); cuLaunchKernel(0); if (i % 2) cuMemFree_v2(p); }
  cuMemAlloc_v2(&p, 1UL << 41); return 0;
}
"""


def code(name: str) -> str:
    return re.sub(r"//.*", "", script(name))


@pytest.mark.parametrize("name", names())
def test_what_a_call_leaves_in_a_map_is_taken_out_again(name: str) -> None:
    """A key per thread or request that stays would fill its map, and an unfinished call would be printed at the end."""
    text = code(name)
    kept = set(re.findall(r"(@\w+)\[[^\]]*\] = (?:nsecs|arg\d);", text))
    assert kept or name == "network_latency"
    end = text[text.index("END") :] if "END" in text else ""
    for each in kept:
        assert f"delete({each}[" in text and f"clear({each})" in end


@pytest.mark.parametrize("name", names())
def test_every_entry_has_its_return_and_every_script_an_end(name: str) -> None:
    text, (row,) = code(name), scripts().filter(name=name).to_dicts()
    entries = {each for each in row["probes"] if each.startswith(("uprobe:", "kprobe:"))}
    returns = {each.replace("ret", "", 1) for each in row["probes"] if each.startswith(("uretprobe:", "kretprobe:"))}
    assert entries == returns or (name == "network_latency" and not returns)
    assert ("interval:s:60 { exit(); }" in text) != (name == "cuda_allocations")
    assert row["probes"] and 20 < len(row["about"]) < 140 and row["about"].endswith(".")
    assert all(text.count(one) == text.count(other) for one, other in ("{}", "()", "[]"))


def test_histograms_say_their_unit() -> None:
    maps = {each for name in names() for each in re.findall(r"(@\w+)(?:\[[^\]]*\])? = (?:hist|sum)\(", code(name))}
    assert maps and all(each.endswith(("_us", "_bytes")) for each in maps)


def test_a_script_is_made_for_a_library_and_a_time() -> None:
    text = script("cuda_driver_calls", library="/proc/42/root/usr/lib/libcuda.so.1", seconds=5)
    assert "uprobe:/proc/42/root/usr/lib/libcuda.so.1:cuLaunchKernel" in text and ":libcuda:" not in text
    assert "interval:s:5 { exit(); }" in text
    with pytest.raises(UnknownNameError, match="did you mean cuda_allocations"):
        script("cuda_allocation")
    for library in ("", "a b", 'x:y { system("id") }', "a\nb"):
        with pytest.raises(DiagError, match="cannot be named in a probe"):
            script("cuda_allocations", library=library)
    with pytest.raises(DiagError, match="no time to watch"):
        script("cuda_driver_calls", seconds=0)


def test_the_command_lists_and_writes_them(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["bpftrace"])
    assert done.exit_code == 0 and [line.split()[0] for line in done.stdout.splitlines()] == names()
    written = tmp_path / "a.bt"
    done = CliRunner().invoke(
        app, ["bpftrace", "cuda_allocations", "--library", "/x/libcuda.so.1", "--out", str(written)]
    )
    assert done.exit_code == 0
    assert written.read_text() == script("cuda_allocations", library="/x/libcuda.so.1")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that calls a library with the driver's names."""
    assert COMPILER is not None
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    (folder / "program.c").write_text(PROGRAM)
    library = folder / "libcuda.so.1"
    subprocess.run([COMPILER, "-O0", "-shared", "-fPIC", "-o", library, folder / "driver.c"], check=True)
    subprocess.run([COMPILER, "-O0", "-o", folder / "program", folder / "program.c", library], check=True)
    return folder / "program"


def bpftrace(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert BPFTRACE is not None
    return subprocess.run([BPFTRACE, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)


@needs_bpftrace
@pytest.mark.parametrize("name", names())
def test_bpftrace_takes_the_script(name: str, program: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.bt"
    path.write_text(script(name, library=str(program.with_name("libcuda.so.1"))))
    done = bpftrace("-d", path)
    if "tracepoint not found" in done.stderr:
        pytest.skip("this kernel offers no tracepoints")
    faults = [line for line in done.stderr.splitlines() if "ERROR" in line and "RLIMIT_MEMLOCK" not in line]
    assert done.returncode == 0 and not faults, done.stderr


@needs_bpftrace
@pytest.mark.parametrize("kind", ["text", "json"])
def test_what_a_run_prints_is_read(kind: str, program: Path, tmp_path: Path) -> None:
    for name in ("cuda_allocations", "cuda_driver_calls"):
        (tmp_path / f"{name}.bt").write_text(script(name, library=str(program.with_name("libcuda.so.1"))))
        done = bpftrace("-f", kind, "-c", program, tmp_path / f"{name}.bt")
        if "Attaching" not in done.stdout and "attached_probes" not in done.stdout:
            pytest.skip(f"bpftrace cannot attach here: {done.stderr.splitlines()[-1:]}")
        (tmp_path / f"{name}.log").write_text(done.stdout)
    events = diag.load(tmp_path / "cuda_allocations.log").allocator_events
    assert events["action"].value_counts(sort=True).rows() == [("segment_alloc", 5), ("segment_free", 3), ("oom", 1)]
    granted = events.filter(action="segment_alloc")
    assert granted["allocated_bytes"].to_list() == [1024, 2048, 3072, 4096, 5120]
    assert events.filter(action="segment_free")["allocated_bytes"].to_list() == [1024, 3072, 5120]
    assert events.filter(action="oom")["requested_bytes"].to_list() == [1 << 41]
    counted = (
        histograms(tmp_path / "cuda_driver_calls.log").drop_nulls("count").group_by("map").agg(pl.col("count").sum())
    )
    assert dict(counted.iter_rows()) == {
        "@cuMemAlloc_us": 6,
        "@cuMemFree_us": 3,
        "@cuLaunchKernel_us": 5,
        "@cuModuleLoadData_us": 1,
    }
