"""Triton Inference Server's text log: models that are loaded, with what TensorRT-LLM prints inside it."""

from __future__ import annotations

from functools import partial

from infer_diag.loaders import engine_log, tensorrt_llm, tensorrt_llm_ledger
from infer_diag.loaders.engine_log import Engine
from infer_diag.loaders.loader import Loader
from infer_diag.loaders.sniff import Signature
from infer_diag.loaders.tensorrt_llm_rules import CONFIGURATION, TRITON_RULES
from infer_diag.loaders.text.reader import TextFormat

SIGNATURE = Signature(
    stamp=r"(?m)^\W*[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w./-]+\.(?:cc|h):\d+\]",
    phrases=(
        r"[IWE]\d{4} [\d:.]{15} +\d+ (?:server|model_lifecycle|model_repository_manager|pinned_memory_manager"
        r"|cuda_memory_manager|http_server|grpc_server|metrics|backend_model_instance)\.cc:\d+\]",
        r"(?:model_lifecycle|server|http_server|grpc_server)\.cc:\d+\] \"?\w",
        r"successfully loaded '[^']+'",
        r"Started (?:GRPCInferenceService|HTTPService|Metrics Service) at ",
        r"Triton Server Version |Pinned memory pool is created at|\| Repository Agent ",
        r"tritonserver\b",
    ),
)


ENGINE = Engine(
    name="triton",
    text=TextFormat(
        start_needles=tuple(
            sorted({rule.claim for rule in TRITON_RULES} | {*CONFIGURATION, *tensorrt_llm_ledger.NEEDLES})
        ),
        serving_needles=tensorrt_llm.TEXT.serving_needles,
    ),
    rules=TRITON_RULES,
    identify=tensorrt_llm.identify,
    serving=tensorrt_llm.serving,
    configured=tensorrt_llm.configured,
)

LOADER = Loader(
    name="triton",
    about="Triton Inference Server text log: models loaded, TensorRT-LLM inside it",
    versions="2.30 to 2.64",
    frames=("starts", "phases", "incidents", "deployments"),
    example="I0123 12:34:56.789012 1 model_lifecycle.cc:838] successfully loaded 'ensemble'",
    signature=SIGNATURE,
    load=partial(engine_log.load, engine=ENGINE),
)
