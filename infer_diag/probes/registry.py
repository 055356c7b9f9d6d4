"""The probes there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from infer_diag.errors import ProbeUnavailable, UnknownNameError
from infer_diag.probes.budget import Budget
from infer_diag.probes.result import ProbeResult
from infer_diag.probes.settings import Settings

Run = Callable[[Path, Settings, Budget], ProbeResult]


@dataclass(frozen=True)
class Probe:
    """One probe: what it measures, whether it needs a GPU, and how long it may take.

    `home` is the module whose `run` does it; it is imported only when the probe runs, so that listing them is cheap.
    """

    name: str
    about: str
    home: str
    needs_gpu: bool
    limit_s: float

    def run(self, out: Path, settings: Settings, budget: Budget | None = None) -> ProbeResult:
        """The result of one run, not written yet; what `infer_diag.load` reads lies in `out`.

        Raises:
            ProbeUnavailable: it cannot measure on this machine, or a library that it needs is not installed.
        """
        try:
            function: Run = import_module(self.home).run
        except ImportError as error:
            raise ProbeUnavailable(
                f"the {self.name} probe needs {error.name or 'a library'}", hint="pip install 'infer-diag[gpu,sim]'"
            ) from error
        return function(out, settings, budget or Budget(self.limit_s))


PROBES = {
    probe.name: probe
    for probe in (
        Probe(
            "weights",
            "page cache, ways of reading and settings of the storage under a model; any Linux, about 20 s",
            "infer_diag.probes.weights.probe",
            needs_gpu=False,
            limit_s=90,
        ),
        Probe(
            "context",
            "a CUDA context in fresh processes, step by step, and whether CU_CTX_MAP_HOST costs anything",
            "infer_diag.probes.context.probe",
            needs_gpu=True,
            limit_s=120,
        ),
        Probe(
            "memory",
            "allocators of the live GPU: events, free lists, failures under a limit, largest allocation",
            "infer_diag.probes.memory.probe",
            needs_gpu=True,
            limit_s=120,
        ),
        Probe(
            "graphs",
            "CUDA graphs: capture, first launch and replay against launching the kernels one by one",
            "infer_diag.probes.graphs.probe",
            needs_gpu=True,
            limit_s=45,
        ),
        Probe(
            "quantisation",
            "dequantisation kernels (AWQ, GPTQ with and without act-order, FP8): first and later launches",
            "infer_diag.probes.quantisation.probe",
            needs_gpu=True,
            limit_s=60,
        ),
        Probe(
            "kv_layout",
            "five layouts of a KV cache read by kernels, beside a copy on the same device",
            "infer_diag.probes.kv_layout.probe",
            needs_gpu=True,
            limit_s=30,
        ),
        Probe(
            "pipeline",
            "one start of a Hugging Face pipeline in a fresh process: imports, build, weights, tokens; needs --model",
            "infer_diag.probes.pipeline.probe",
            needs_gpu=False,
            limit_s=600,
        ),
    )
}
"""In the order in which `all` runs them; their limits leave that below eight minutes without the pipeline."""


def named(name: str) -> Probe:
    """The probe of this name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in PROBES:
        raise UnknownNameError("probe", name, [*PROBES, "all"])
    return PROBES[name]
