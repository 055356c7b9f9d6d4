"""The article's figures on quantised formats and the first request (its section 2.3) beside ours."""

from __future__ import annotations

import numpy as np
import polars as pl

from infer_diag.probes.obtained import Obtained
from infer_diag.probes.quantisation import four_bit
from infer_diag.probes.quantisation.article import as_described
from infer_diag.probes.quantisation.probe import ARTICLE_S
from infer_diag.probes.quantisation.sizes import scale_rows, weight_bytes
from infer_diag.probes.spread import spread
from infer_diag.report.claims import Claim, Claims
from infer_diag.units import format_bytes, format_count, format_s

INPUTS = OUTPUTS = 4096
PARAMETERS = {"Llama-2-13B": 13.02e9, "Qwen2-7B": 7.62e9, "Phi-3-mini": 3.82e9}
FORMS = ("bfloat16", "fp8", "awq", "gptq_act_order")
_SHOWN = {"awq": "AWQ", "gptq": "GPTQ", "fp8": "FP8 (H100)"}
_EVERY_TIME = (
    "a kernel unpacks the weights in registers in every forward pass. What happens once is the repacking of the words "
    "for the kernel (vLLM's Marlin) when they are loaded, and the compilation or loading of the kernel"
)


def snippet_error() -> str:
    """What the article's line does with a real AWQ weight of 512 × 512 in groups of 128: the error that it raises."""
    weight = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    awq = four_bit.awq_packed(weight)
    try:
        as_described(awq.qweight, awq.scales[:, 0], np.arange(len(awq.scales)), awq.group)
    except ValueError as error:
        return f"ValueError: {error}".strip()
    raise AssertionError("the article's line ran")


def layouts(inputs: int = INPUTS, group: int = four_bit.GROUP, seed: int = 0) -> pl.DataFrame:
    """`layout`, `input_id`, `group_id`, `row_count`: the group of every input, and how many rows of scales that loads.

    Three layouts: sequential groups (AWQ, plain GPTQ), act-order, and act-order sorted by group when it was loaded.
    """
    plain = (np.arange(inputs) // group).astype(np.int32)
    mixed = np.random.default_rng(seed).permutation(plain)
    parts = {"sequential": plain, "act-order": mixed, "act-order sorted at load": np.sort(mixed, kind="stable")}
    return pl.concat(
        pl.DataFrame({"layout": name, "input_id": np.arange(inputs), "group_id": each, "row_count": scale_rows(each)})
        for name, each in parts.items()
    )


def sizes() -> pl.DataFrame:
    """`model`, `form`, `size_bytes`: what the linear weights of the article's models weigh in each format, modelled."""
    rows = [(model, form, weight_bytes(count, form)) for model, count in PARAMETERS.items() for form in FORMS]
    return pl.DataFrame(rows, schema={"model": pl.String, "form": pl.String, "size_bytes": pl.Float64}, orient="row")


def later_over_first(runs: pl.DataFrame, kernel: str) -> float:
    """Median seconds of the later launches of a kernel over those of its first one.

    Raises:
        ValueError: it was launched once at most.
    """
    mine = runs.filter(pl.col("kernel") == kernel).sort("launch_id")["duration_s"].to_list()
    told = spread(mine[1:])
    if told is None:
        raise ValueError(f"{kernel} has no later launch")
    return told.p50 / float(mine[0])


def quantisation_claims(got: Obtained, reference: pl.DataFrame) -> Claims:
    """Every figure of the article's section 2.3 beside ours.

    `reference` is `probes.frames.KernelRuns` of the numpy references, measured on this machine.
    """
    runs = got.result.frames["kernel_runs"] if got.result else reference.clear()
    tables = [claim for name in ARTICLE_S for claim in _launch_claims(got, runs, name)]
    return Claims([*tables, *_sum_claims(reference), *_index_claims(), *_size_claims()])


def _launch_claims(got: Obtained, runs: pl.DataFrame, name: str) -> list[Claim]:
    mine = runs.filter(pl.col("kernel") == name).sort("launch_id")["duration_s"].to_list()
    later = spread(mine[1:])
    ours = (
        f"{format_s(mine[0])}, compilation included" if mine else None,
        None if later is None else f"{format_s(later.p50)} each",
    )
    notes = (_EVERY_TIME, "a second launch is no warm-up: it is what every forward pass pays for one 4,096² layer")
    if name == "fp8":
        notes = ("FP8 is native on Hopper and Ada; an A100 has it for weights alone", notes[1])
    subjects = (f"{_SHOWN[name]}: first decompression", f"{_SHOWN[name]}: kernel warm-up")
    return [
        Claim(
            subject,
            f"{seconds * 1e3:.1f} ms",
            told,
            got.how if told else "not_identifiable",
            note,
            f"on {got.where}" if told else "without a GPU",
        )
        for subject, seconds, told, note in zip(subjects, ARTICLE_S[name], ours, notes, strict=True)
    ]


def _sum_claims(reference: pl.DataFrame) -> list[Claim]:
    sums = ", ".join(f"{_SHOWN[name]} {sum(parts) * 1e3:.1f} ms" for name, parts in ARTICLE_S.items())
    ratios = ", ".join(
        f"{_SHOWN.get(name, name)} × {later_over_first(reference, name):.2f}" for name in ("awq", "gptq")
    )
    return [
        Claim(
            "how the parts combine",
            "nonlinear",
            f"they add up: {sums}",
            "modelled",
            "loading, unpacking and warm-up follow each other, so the sum is linear by the article's own table; "
            "calibration happens offline and no calibration tensor is unpacked at a start",
            "from the article's own table",
        ),
        Claim(
            "unpacking again, against the first time",
            "paid once",
            ratios,
            "measured",
            "with no compiler in the way a later time is like the first: having unpacked before saves nothing",
            "by numpy on this machine",
        ),
    ]


def _index_claims() -> list[Claim]:
    rows = dict(layouts().select("layout", "row_count").unique().iter_rows())
    told = [f"{format_count(rows[name])} {name}" for name in ("sequential", "act-order", "act-order sorted at load")]
    scales = four_bit.GROUP
    held = INPUTS // scales * OUTPUTS * 2
    return [
        Claim(
            "AWQ looks scales up by activation",
            "scales[indices]",
            f"rows of scales loaded: {', '.join(told)}",
            "modelled",
            "AWQ uses activations offline, to scale channels; at run time the group of input k is k // group size. "
            "An index that depends on data is GPTQ's g_idx with act-order (desc_act); sorting the rows once at load "
            "makes it plain",
            f"counted for {INPUTS:,} inputs in groups of {scales}",
        ),
        Claim(
            "the look-up misses the TLB and thrashes cache lines",
            "scattered memory access",
            f"{format_bytes(held)} of scales in a layer of {INPUTS:,} × {OUTPUTS:,}",
            "modelled",
            "a GPU's page is 2 MiB, so the scales of a layer lie on one or two of them, and an L2 cache of 40 MB "
            "(A100) or 50 MB (H100) holds them whole",
            "from the layout",
        ),
        Claim(
            "the article's line of code",
            "rebuilds the weight",
            snippet_error(),
            "measured",
            "it multiplies [n, group] by [n], which needs [:, None]; it unpacks no nibbles and subtracts no zeros",
            "by running it",
        ),
    ]


def _size_claims() -> list[Claim]:
    found = {form: size for model, form, size in sizes().iter_rows() if model == "Qwen2-7B"}
    told = ", ".join(f"{form.replace('_', ' ')} {found[form] / 1e9:.2f} GB" for form in ("bfloat16", "fp8", "awq"))
    return [
        Claim(
            "FP8 starts fastest",
            "2.9 ms against 25.4 and 27.9 ms",
            f"Qwen2-7B: {told}",
            "modelled",
            f"FP8 moves {found['fp8'] / found['awq']:.2f} times the bytes of four bits, and reading them is the longer "
            "part of a start: choose by bytes and by kernel, not by decompression",
            "from bits per weight",
        )
    ]
