"""How far simulations of two recorded GPU runs are off: figures that travel with the package, the runs do not.

The runs are real vLLM 0.19 servers, 300 ShareGPT requests at 10 a second each, which LLMServingSim publishes (MIT) with
their requests' events, settings and a line of statistics a second. Step times are fitted to the first half of a run, or
come from published constants alone. The project's tests simulate both runs again and hold these figures to them.
"""

from __future__ import annotations

import dataframely as dy
import polars as pl

MEASURES = ("output_tokens_per_s", "ttft_s", "tpot_s", "running_count", "waiting_count")
RTX_4090 = "Llama-3.1-8B on an RTX 4090"
RTX_PRO_6000 = "Qwen3-30B-A3B on two RTX PRO 6000"
FITTED = "fitted to the first half"
CONSTANTS = "published constants"


class GpuRunErrors(dy.Schema):
    """One row per run, step time, part and measure: `error_ratio` = simulated / recorded − 1.

    Medians of TTFT and TPOT, peaks of running and waiting requests in the statistics.
    """

    run = dy.Enum((RTX_4090, RTX_PRO_6000))
    step_time = dy.Enum((FITTED, CONSTANTS))
    part = dy.Enum(("second half", "whole"))
    measure = dy.Enum(MEASURES)
    error_ratio = dy.Float64()


_ERRORS = {
    (RTX_4090, FITTED, "second half"): (-0.006, 0.008, -0.002, 0.0, 0.008),
    (RTX_4090, FITTED, "whole"): (-0.010, -0.001, 0.0, -0.041, 0.0),
    (RTX_4090, CONSTANTS, "whole"): (-0.003, 0.010, -0.004, -0.020, 0.004),
    (RTX_PRO_6000, FITTED, "second half"): (0.005, 0.034, 0.028, 0.0, 0.0),
    (RTX_PRO_6000, FITTED, "whole"): (-0.008, -0.041, 0.027, 0.0, 0.027),
}


def gpu_run_errors() -> dy.DataFrame[GpuRunErrors]:
    """The errors, as tests found them. Simulated against recorded."""
    rows = [
        {"run": run, "step_time": step_time, "part": part, "measure": measure, "error_ratio": error}
        for (run, step_time, part), errors in _ERRORS.items()
        for measure, error in zip(MEASURES, errors, strict=True)
    ]
    return GpuRunErrors.validate(pl.DataFrame(rows), cast=True)
