"""The kernels of the KV layouts: compiled for Hopper, run on the processor against numpy, and their probe."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the layouts need numpy, in the extra `sim`")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from infer_diag.errors import ProbeUnavailable  # noqa: E402
from infer_diag.probes.budget import Budget  # noqa: E402
from infer_diag.probes.kv_layout import kernels  # noqa: E402
from infer_diag.probes.kv_layout.compiling import complaint  # noqa: E402
from infer_diag.probes.kv_layout.launches import CuPyReader, Launched  # noqa: E402
from infer_diag.probes.kv_layout.packing import Cache, drawn, scalars, summed  # noqa: E402
from infer_diag.probes.kv_layout.probe import probe_kv_layout  # noqa: E402
from infer_diag.probes.result import read_result  # noqa: E402

PORTABLE = """
#define __device__ static
typedef struct { unsigned int x, y, z, w; } uint4;
struct place { long long x; };
static struct place blockIdx, blockDim, threadIdx;
"""


def test_every_layout_has_a_kernel_and_a_name() -> None:
    assert set(kernels.BODIES) == set(kernels.LAYOUT_OF)
    simulators = pytest.importorskip("infer_diag.simulators.kv_layout")
    assert tuple(kernels.LAYOUT_OF.values()) == simulators.LAYOUTS


def test_packing_is_what_the_model_of_addresses_says() -> None:
    model = pytest.importorskip("infer_diag.simulators.kv_layout")
    cache = drawn(2, 32, 3, 16, block=8)
    shape = model.KvShape(sequences=2, tokens=32, kv_heads=3, head_dim=16, block_tokens=8)
    places = np.ix_(*map(np.arange, cache.keys.shape))
    for kernel, layout in kernels.LAYOUT_OF.items():
        for tensor, logical, packed in zip(
            ("keys", "values"), (cache.keys, cache.values), cache.packed(kernel), strict=True
        ):
            found = model.addresses(layout, shape, *places, tensor=tensor, table=cache.table.astype(np.int64))
            assert np.array_equal(packed.ravel()[found // 2], logical)


def test_the_sum_is_the_one_of_its_definition() -> None:
    cache = drawn(1, 8, 2, 8, block=8)
    by_hand = sum(
        int(tensor[0, t, 1, d]) * (of_token * t + of_dim * d + 1)
        for tensor, of_token, of_dim in (
            (cache.keys, kernels.KEY_TOKEN, kernels.KEY_DIM),
            (cache.values, kernels.VALUE_TOKEN, kernels.VALUE_DIM),
        )
        for t in range(8)
        for d in range(8)
    )
    assert cache.sums()[0, 1] == by_hand % (1 << 32)


@given(seed=st.integers(0, 99), token=st.integers(0, 15), dim=st.integers(0, 7), other=st.integers(0, 7))
@settings(max_examples=30, deadline=None)
def test_two_values_that_change_places_change_the_sum(seed: int, token: int, dim: int, other: int) -> None:
    cache = drawn(1, 16, 1, 8, block=8, seed=seed)
    before = cache.sums()[0, 0]
    line = cache.keys[0, token, 0]
    line[dim], line[other] = line[other], line[dim]
    assert (cache.sums()[0, 0] == before) == (line[dim] == line[other])


@pytest.fixture(scope="module")
def on_the_processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernels' bodies compiled for the processor; each runs all its threads one after the other."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler here to run the kernels' bodies with")
    folder = tmp_path_factory.mktemp("kernels")
    parts = [PORTABLE, kernels.preamble()]
    for name, body in kernels.BODIES.items():
        parts.append(body.replace('extern "C" __global__', "static"))
        (parameters,) = re.findall(rf"void {name}\((.*?)\)", body, flags=re.DOTALL)
        names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
        loops = "for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) "
        loops += "for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)"
        parts.append(
            f"void run_{name}(long long blocks, {parameters}) "
            f"{{ blockDim.x = {kernels.THREADS}; {loops} {name}({names}); }}\n"
        )
    (folder / "kernels.c").write_text("".join(parts))
    words = [compiler, "-O1", "-fno-strict-aliasing", "-std=gnu11", "-shared", "-fPIC", "-o"]
    words += [str(folder / "kernels.so"), str(folder / "kernels.c")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "kernels.so"))


def launched(library: Any, kernel: str, cache: Cache, splits: int) -> Any:
    blocks = cache.keys.shape[0] * cache.keys.shape[2] * splits
    out = np.zeros(blocks * kernels.THREADS, dtype=np.uint32)
    arrays = (*cache.packed(kernel), cache.table, out)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    numbers = [ctypes.c_int(int(each)) for each in scalars(cache, splits)]
    getattr(library, f"run_{kernel}")(ctypes.c_longlong(blocks), *pointers, *numbers)
    return out


@pytest.mark.parametrize("kernel", list(kernels.BODIES))
@pytest.mark.parametrize(("dims", "block", "splits"), [(128, 16, 2), (64, 32, 1), (40, 8, 4)])
def test_the_body_of_each_kernel_finds_the_sum(
    on_the_processor: Any, kernel: str, dims: int, block: int, splits: int
) -> None:
    cache = drawn(2, 128, 3, dims, block=block, seed=dims)
    found = summed(launched(on_the_processor, kernel, cache, splits), cache, splits)
    assert np.array_equal(found, cache.sums())


def test_a_kernel_in_another_layout_would_be_seen(on_the_processor: Any) -> None:
    cache = drawn(1, 64, 4, 32, seed=1)
    out = np.zeros(4 * kernels.THREADS, dtype=np.uint32)
    arrays = (*cache.packed("bhsd"), cache.table, out)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    numbers = [ctypes.c_int(int(each)) for each in scalars(cache, 1)]
    on_the_processor.run_bshd(ctypes.c_longlong(4), *pointers, *numbers)
    assert not (summed(out, cache, 1) == cache.sums()).any()


def nvrtc() -> Any:
    """The compiler that comes with CUDA, which needs no GPU."""
    module = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    try:
        module.nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    return module.nvrtc


def compiled(text: str) -> bytes:
    compiler = nvrtc()
    program = compiler.createProgram(text, "kv_layout.cu", (), ())
    try:
        compiler.compileProgram(program, ("--gpu-architecture=sm_90",))
    except compiler.NVRTCError as error:
        raise ValueError(compiler.getProgramLog(program)) from error
    return bytes(compiler.getCUBIN(program))


def test_the_module_compiles_for_hopper_without_a_gpu() -> None:
    binary = compiled(kernels.source())
    assert all(name.encode() in binary for name in kernels.BODIES)


def test_a_kernel_that_does_not_compile_would_be_seen() -> None:
    with pytest.raises(ValueError, match="undefined"):
        compiled(kernels.source().replace("row_of_keys(*", "row_of_kyes(*", 1))


def test_the_articles_array_does_not_compile_and_a_tile_does() -> None:
    with pytest.raises(ValueError, match="too much shared data"):
        compiled(kernels.article_source())
    assert compiled(kernels.article_source(tokens=12))


def test_a_complaint_is_one_line_of_the_compiler() -> None:
    nvrtc()
    assert "0x800000 bytes" in (complaint(kernels.article_source()) or "")
    named = kernels.article_source(12).replace("unsigned short kv_cache", "float16_t kv_cache")
    assert 'identifier "float16_t" is undefined' in (complaint(named) or "")
    assert complaint(kernels.source()) == ""


class FakeReader:
    """Finds the sums with numpy, or one off, in known times."""

    basis = "simulated"

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    def facts(self) -> dict[str, str | int]:
        return {"name": "fake"}

    def launches(self, kernel: str, cache: Cache, splits: int, count: int) -> Launched:
        out = np.zeros((*cache.sums().shape, splits * kernels.THREADS), dtype=np.uint32)
        out[:, :, 0] = cache.sums() + np.uint32(kernel == self.wrong)
        return Launched([1e-3] * count, out.ravel(), 12, 40)

    def copy_seconds(self, size_bytes: int, count: int) -> list[float]:
        return [2e-3] * count


def test_launches_become_rates_beside_a_copy(tmp_path: Path) -> None:
    result = probe_kv_layout(FakeReader(), sequences=1, tokens=64, heads=2, dims=16, splits=2, launches=4)
    rates = {row["layout"]: row for row in result.frames["kv_layout_rates"].to_dicts()}
    assert list(rates) == ["copy", *kernels.LAYOUT_OF.values()]
    size = 2 * 64 * 2 * 16 * 2
    assert rates["BSHD"]["p50_bytes_per_s"] == pytest.approx(size / 1e-3)
    assert rates["copy"]["p50_bytes_per_s"] == pytest.approx(size / 2e-3)
    assert rates["vLLM split"]["of_copy_ratio"] == pytest.approx(2.0)
    assert rates["copy"]["register_count"] is None and rates["BSHD"]["register_count"] == 40
    assert "1.00 times as fast" in " ".join(result.sentences)
    assert read_result(result.write(tmp_path)).frames["kv_layout_rates"].equals(result.frames["kv_layout_rates"])


def test_a_kernel_that_finds_another_sum_is_no_measurement() -> None:
    with pytest.raises(ProbeUnavailable, match="paged_hnd does not agree with numpy"):
        probe_kv_layout(FakeReader(wrong="paged_hnd"), sequences=1, tokens=64, heads=2, dims=16, splits=2)


def test_a_spent_budget_leaves_one_layout() -> None:
    result = probe_kv_layout(
        FakeReader(), sequences=1, tokens=64, heads=2, dims=16, splits=2, launches=2, budget=Budget(0.0)
    )
    assert result.frames["kv_layout_rates"]["layout"].to_list() == ["copy", "BSHD"]


def test_sizes_that_do_not_fit_the_loads_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        drawn(1, 64, 1, 12)


def test_the_names_of_cupy_are_those_of_the_installed_library() -> None:
    module = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert all(hasattr(module, name) for name in ("asarray", "zeros", "uint32", "RawModule"))
    assert all(hasattr(module.cuda, name) for name in ("Event", "get_elapsed_time"))
    assert hasattr(module.cuda.driver, "occupancyMaxActiveBlocksPerMultiprocessor")
    assert hasattr(module.RawModule, "get_function")
    assert {"kernel", "num_regs"} <= set(dir(module.RawKernel))
    assert hasattr(module.cuda.MemoryPointer, "copy_from_device_async")


@pytest.mark.gpu
def test_the_kernels_agree_with_numpy_on_a_gpu() -> None:
    try:
        reader = CuPyReader()
    except ProbeUnavailable as error:
        pytest.skip(str(error))
    result = probe_kv_layout(reader, sequences=2, tokens=256, heads=4, launches=3)
    assert set(result.frames["kv_layout_rates"]["layout"]) == {"copy", *kernels.LAYOUT_OF.values()}
