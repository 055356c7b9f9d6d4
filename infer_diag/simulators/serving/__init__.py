"""A serving engine simulated step by step: arrivals, step times, KV blocks and schedulers; frames as a log has them."""

from infer_diag.simulators.serving.hardware import GPUS, MODELS, Gpu, Model, gpu_named, model_named
from infer_diag.simulators.serving.result import Simulation
from infer_diag.simulators.serving.settings import SCHEDULERS, EngineSettings, settings_of
from infer_diag.simulators.serving.simulate import simulate
from infer_diag.simulators.serving.step_time import StepScatter, StepTime, roofline
from infer_diag.simulators.serving.workload import (
    Workload,
    gamma_arrivals,
    lognormal_tokens,
    poisson_arrivals,
    replay,
    step_arrivals,
    workload,
)

__all__ = [
    "GPUS",
    "MODELS",
    "SCHEDULERS",
    "EngineSettings",
    "Gpu",
    "Model",
    "Simulation",
    "StepScatter",
    "StepTime",
    "Workload",
    "gamma_arrivals",
    "gpu_named",
    "lognormal_tokens",
    "model_named",
    "poisson_arrivals",
    "replay",
    "roofline",
    "settings_of",
    "simulate",
    "step_arrivals",
    "workload",
]
