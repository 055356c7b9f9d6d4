"""Formats of quantised weights against their definitions, and the kernels against the formats."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="the formats need numpy, in the extra `sim`")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from infer_diag.errors import ProbeUnavailable  # noqa: E402
from infer_diag.probes.graphs.chain import SOURCE as CHAIN_SOURCE  # noqa: E402
from infer_diag.probes.quantisation import eight_bit, four_bit, kernels, nibbles  # noqa: E402
from infer_diag.probes.quantisation.article import as_described  # noqa: E402
from infer_diag.probes.quantisation.launches import CuPyLauncher, Layer, is_right, layers  # noqa: E402
from infer_diag.probes.quantisation.probe import probe_quantisation  # noqa: E402
from infer_diag.probes.quantisation.sizes import scale_rows, scale_sectors, weight_bytes  # noqa: E402

ORDERS = st.sampled_from([nibbles.SEQUENTIAL, nibbles.AWQ])


def weight(inputs: int, outputs: int, seed: int = 0, shift: float = 0.0) -> Any:
    draws = np.random.default_rng(seed)
    return (draws.standard_normal((inputs, outputs)) * 0.05 + shift).astype(np.float32)


def test_a_word_holds_its_values_where_each_format_has_them() -> None:
    values = np.arange(8, dtype=np.int32)
    assert nibbles.packed(values).view(np.uint32).tolist() == [0x76543210]
    assert nibbles.packed(values, nibbles.AWQ).view(np.uint32).tolist() == [0x75316420]


@given(st.lists(st.integers(0, 15), min_size=8, max_size=64), ORDERS)
@settings(max_examples=40, deadline=None)
def test_packing_is_undone(numbers: list[int], order: tuple[int, ...]) -> None:
    values = np.array(numbers[: len(numbers) // 8 * 8], dtype=np.int32)
    assert nibbles.unpacked(nibbles.packed(values, order), order).tolist() == values.tolist()


@pytest.mark.parametrize("values", [[16] * 8, [-1] * 8, [1] * 7])
def test_what_does_not_fit_is_refused(values: list[int]) -> None:
    with pytest.raises(ValueError, match=r"does not fit|do not fill"):
        nibbles.packed(np.array(values, dtype=np.int32))


@given(seed=st.integers(0, 999), group=st.sampled_from([8, 16, 32]), shift=st.sampled_from([-0.2, 0.0, 0.2]))
@settings(max_examples=25, deadline=None)
def test_unpacked_weights_lie_within_half_a_step(seed: int, group: int, shift: float) -> None:
    original = weight(64, 16, seed, shift)
    order = np.random.default_rng(seed).permutation(64).astype(np.int32)
    awq = four_bit.awq_packed(original, group)
    for made, scales, unpack in (
        (awq, awq.scales[np.arange(64) // group], four_bit.awq_unpacked),
        *(
            (g, g.scales[g.g_idx], four_bit.gptq_unpacked)
            for g in (gptq(original, group), gptq(original, group, order))
        ),
    ):
        steps = np.abs(unpack(made) - original) / scales.astype(np.float32)
        assert steps.max() <= 0.51


def gptq(original: Any, group: int, order: Any = None) -> four_bit.GptqWeight:
    return four_bit.gptq_packed(original, group, order)


def test_awq_and_gptq_are_the_same_numbers_in_other_layouts() -> None:
    original = weight(128, 24)
    awq, plain = four_bit.awq_packed(original, 32), four_bit.gptq_packed(original, 32)
    assert np.array_equal(four_bit.awq_unpacked(awq), four_bit.gptq_unpacked(plain))
    assert awq.qweight.shape == (128, 3)
    assert plain.qweight.shape == (16, 24)
    assert awq.qzeros.shape == plain.qzeros.shape == (4, 3)


def test_gptq_stores_its_zeros_less_by_one() -> None:
    plain = four_bit.gptq_packed(np.full((8, 8), 0.7, dtype=np.float32), 8)
    assert nibbles.unpacked(plain.qzeros).tolist() == [[0] * 8]
    assert four_bit.gptq_unpacked(plain) == pytest.approx(0.7, abs=0.01)


def test_act_order_keeps_rows_in_place_and_sorting_them_once_makes_it_plain() -> None:
    original = weight(64, 16)
    order = np.random.default_rng(5).permutation(64).astype(np.int32)
    made = four_bit.gptq_packed(original, 16, order)
    assert made.g_idx[order].tolist() == sorted(made.g_idx.tolist())
    assert not np.array_equal(made.g_idx, np.sort(made.g_idx))
    plain, rows = four_bit.reordered(made)
    assert np.array_equal(plain.g_idx, np.arange(64) // 16)
    inputs = weight(3, 64, seed=9)
    assert np.allclose(
        inputs @ four_bit.gptq_unpacked(made), inputs[:, rows] @ four_bit.gptq_unpacked(plain), atol=1e-5
    )
    with pytest.raises(ValueError, match="no permutation"):
        four_bit.gptq_packed(original, 16, np.zeros(64, dtype=np.int32))
    with pytest.raises(ValueError, match="does not fit groups"):
        four_bit.gptq_packed(original, 48)


def test_the_codes_of_fp8_are_those_of_the_format() -> None:
    table = eight_bit.values()
    assert table[[0x00, 0x01, 0x07, 0x08, 0x38, 0x7E]].tolist() == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448]
    assert table[[0x80, 0x81, 0xFE]].tolist() == [0, -(2**-9), -448]
    assert np.isnan(table[[0x7F, 0xFF]]).all()
    assert len(set(table[:127].tolist())) == 127


@given(st.floats(-500, 500, width=32))
@settings(max_examples=200, deadline=None)
def test_the_nearest_code_is_taken(number: float) -> None:
    (code,) = eight_bit.encoded(np.array([number], dtype=np.float32))
    table = np.delete(eight_bit.values().astype(np.float64), [0x7F, 0xFF])
    clipped = max(-448.0, min(448.0, number))
    assert abs(float(eight_bit.values()[code]) - clipped) == np.abs(table - clipped).min()


def test_every_code_survives_and_ties_go_to_the_even_one() -> None:
    codes = np.array([code for code in range(256) if code & 127 != 127], dtype=np.uint8)
    assert np.array_equal(eight_bit.encoded(eight_bit.values()[codes]), codes)
    halfway = (eight_bit.values()[0x38] + eight_bit.values()[0x39]) / 2
    assert eight_bit.encoded(np.array([halfway, np.nan, 1e9], dtype=np.float32)).tolist() == [0x38, 0x7F, 0x7E]


def test_a_weight_in_fp8_keeps_its_largest_value_and_a_sixteenth_of_the_others() -> None:
    original = weight(32, 32)
    codes, scale = eight_bit.packed(original)
    again = eight_bit.unpacked(codes, scale)
    assert np.abs(again).max() == pytest.approx(np.abs(original).max(), rel=1e-6)
    assert (np.abs(again - original) <= np.maximum(np.abs(original) / 16, scale * 2**-9) * 1.001).all()
    assert eight_bit.packed(np.zeros((2, 2), dtype=np.float32))[1] == 1.0


def test_what_the_article_describes_fails_or_is_wrong() -> None:
    original = weight(64, 64)
    awq = four_bit.awq_packed(original, 16)
    indices = np.arange(awq.qweight.size // 16) % len(awq.scales)
    with pytest.raises(ValueError, match="could not be broadcast"):
        as_described(awq.qweight, awq.scales[:, 0], indices, 16)
    square = four_bit.awq_packed(weight(32, 64), 16)
    shown = as_described(square.qweight, square.scales[:, 0], np.arange(16) % len(square.scales), 16)
    assert shown.size == four_bit.awq_unpacked(square).size / 8


def test_formats_weigh_what_their_parts_weigh() -> None:
    inputs, outputs = 512, 512
    original = weight(inputs, outputs)
    awq, act = four_bit.awq_packed(original, 128), four_bit.gptq_packed(original, 128)
    held = awq.qweight.nbytes + awq.qzeros.nbytes + awq.scales.nbytes
    assert weight_bytes(inputs * outputs, "awq") == held
    held = act.qweight.nbytes + act.qzeros.nbytes + act.scales.nbytes + act.g_idx.nbytes
    assert weight_bytes(inputs * outputs, "gptq_act_order", inputs=outputs) == held
    assert weight_bytes(7.62e9, "fp8") == 7.62e9
    assert weight_bytes(7.62e9, "bfloat16") / weight_bytes(7.62e9, "awq") == pytest.approx(3.85, abs=0.01)


def test_act_order_loads_a_row_of_scales_for_nearly_every_input() -> None:
    groups = np.arange(4096, dtype=np.int32) // 128
    mixed = np.random.default_rng(0).permutation(groups)
    assert scale_rows(groups) == 32
    assert 0.95 * 4096 < scale_rows(mixed) < 4096
    assert scale_rows(groups[:0]) == 0
    assert scale_sectors(groups, 64) == 32 * (4 + 1)


PORTABLE = """
#include <string.h>
static float from_half(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
static unsigned short to_half(float v) { _Float16 h = (_Float16)v; unsigned short b; memcpy(&b, &h, 2); return b; }
struct place { long long x; };
static struct place blockIdx, blockDim, threadIdx;
"""


def on_the_processor(name: str, folder: Path) -> Any:
    """The kernel's body compiled for the processor, as a function that runs all its threads one after the other."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler here to run the kernel's body with")
    body = kernels.SOURCES[name].replace('extern "C" __global__', "static")
    (parameters,) = re.findall(rf"void {name}\((.*?)\)", body, flags=re.DOTALL)
    names = ", ".join(re.findall(r"(\w+)\s*(?:,|$)", parameters))
    loop = "blockDim.x = 1; threadIdx.x = 0; for (blockIdx.x = 0; blockIdx.x < threads; ++blockIdx.x)"
    run = f"void run(long long threads, {parameters}) {{ {loop} {name}({names}); }}\n"
    (folder / "kernel.c").write_text(PORTABLE + body + run)
    words = [
        compiler,
        "-O1",
        "-std=gnu11",
        "-shared",
        "-fPIC",
        "-o",
        str(folder / "kernel.so"),
        str(folder / "kernel.c"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and "_Float16" in done.stderr:
        pytest.skip("this C compiler knows no half precision")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(folder / "kernel.so")).run


@pytest.mark.parametrize("name", ["awq", "gptq", "gptq_act_order", "fp8"])
def test_the_body_of_each_kernel_does_what_the_reference_does(name: str, tmp_path: Path) -> None:
    layer = layers(96, 40, group=32, seed=3)[name]()
    function = on_the_processor(layer.kernel, tmp_path)
    out = np.zeros(layer.expected.shape, dtype=np.float16)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*layer.arrays, out)]
    if name == "fp8":
        scale, count = ctypes.c_float(float(layer.scalars[0])), ctypes.c_longlong(int(layer.scalars[1]))
        words = [pointers[0], scale, pointers[1], count]
    else:
        words = [*pointers, *(ctypes.c_int(int(each)) for each in layer.scalars)]
    function(ctypes.c_longlong(layer.threads), *words)
    assert is_right(layer, out.astype(np.float32))
    out[3, 5] += np.float16(0.01)
    assert not is_right(layer, out.astype(np.float32))


def test_the_kernel_of_fp8_decodes_every_code(tmp_path: Path) -> None:
    function = on_the_processor("fp8", tmp_path)
    codes, out = np.arange(256, dtype=np.uint8), np.zeros(256, dtype=np.float16)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (codes, out)]
    function(ctypes.c_longlong(256), pointers[0], ctypes.c_float(1.0), pointers[1], ctypes.c_longlong(256))
    assert np.array_equal(out.astype(np.float32), eight_bit.values(), equal_nan=True)


def nvrtc() -> Any:
    """The compiler that comes with CUDA, which needs no GPU."""
    module = pytest.importorskip("cupy.cuda", reason="CuPy is not installed")
    try:
        module.nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    return module.nvrtc


@pytest.mark.parametrize(
    ("name", "text"), [*((name, kernels.source(name)) for name in kernels.SOURCES), ("add_one", CHAIN_SOURCE)]
)
def test_each_kernel_compiles_for_hopper_without_a_gpu(name: str, text: str) -> None:
    compiler = nvrtc()
    program = compiler.createProgram(text, f"{name}.cu", (), ())
    compiler.compileProgram(program, ("--gpu-architecture=sm_90",))
    assert name.encode() in compiler.getCUBIN(program)


def test_a_kernel_that_does_not_compile_would_be_seen() -> None:
    compiler = nvrtc()
    program = compiler.createProgram(kernels.source("awq").replace("qweight[place]", "qweight[plaec]"), "x.cu", (), ())
    with pytest.raises(compiler.NVRTCError):
        compiler.compileProgram(program, ("--gpu-architecture=sm_90",))


class FakeLauncher:
    """Writes the reference, or something else, in known times."""

    basis = "simulated"

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def facts(self) -> dict[str, str | int]:
        return {"name": "fake"}

    def launches(self, layer: Layer, name: str, count: int) -> tuple[list[float], Any]:
        return [0.5, *[0.001] * (count - 1)], layer.expected + (1.0 if self.wrong else 0.0)


def test_launches_become_rates() -> None:
    result = probe_quantisation(FakeLauncher(), inputs=256, outputs=64, launches=3)
    rows = result.frames["kernel_runs"].rows(named=True)
    assert [(row["kernel"], row["launch_id"]) for row in rows[:4]] == [("awq", 1), ("awq", 2), ("awq", 3), ("gptq", 1)]
    row = rows[1]
    assert row["written_bytes"] == 256 * 64 * 2
    assert row["read_bytes"] == 256 * 64 / 2 + 2 * 64 * 2 + 2 * 64 / 2
    assert row["bytes_per_s"] == pytest.approx((row["read_bytes"] + row["written_bytes"]) / 0.001)
    assert any("fp8: first launch 500 ms with compilation, then 1 ms" in text for text in result.sentences)


def test_a_kernel_that_writes_something_else_is_no_measurement() -> None:
    with pytest.raises(ProbeUnavailable, match="does not agree with its reference"):
        probe_quantisation(FakeLauncher(wrong=True), inputs=256, outputs=64)


def test_the_names_of_cupy_are_those_of_the_installed_library() -> None:
    module = pytest.importorskip("cupy", reason="CuPy is not installed")
    assert all(hasattr(module, name) for name in ("asarray", "zeros", "float16", "RawKernel"))
    assert all(hasattr(module.cuda, name) for name in ("Event", "get_elapsed_time"))
    assert {"record", "synchronize"} <= set(dir(module.cuda.Event))


@pytest.mark.gpu
def test_the_kernels_agree_with_the_reference_on_a_gpu() -> None:
    try:
        launcher = CuPyLauncher()
    except ProbeUnavailable as error:
        pytest.skip(str(error))
    result = probe_quantisation(launcher, inputs=512, outputs=512, launches=3)
    assert set(result.frames["kernel_runs"]["kernel"]) == {"awq", "gptq", "gptq_act_order", "fp8"}
