"""Changes of an engine's settings as a user writes them, and whether a simulation of its log can tell what they do."""

from __future__ import annotations

from dataclasses import fields, replace

import polars as pl

from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.recording import Recording
from infer_diag.simulators.serving import EngineSettings

_BOOLEANS = {"on": True, "true": True, "off": False, "false": False}
_CONTINUOUS = ("max_num_seqs", "kv_cache_tokens", "block_tokens", "data_parallel_size")
_BATCHES = ("batch_size", "batch_wait_s")
_RESORTING = ("resort_count", "resort_s", "resort_load_ratio")
READ_BY = {
    "vllm-v1": (
        *_CONTINUOUS,
        "max_num_batched_tokens",
        "chunked_prefill",
        "long_prefill_token_threshold",
        "whole_prompt_fits",
        "async_scheduling",
    ),
    "vllm-v0": (*_CONTINUOUS, "max_num_batched_tokens", "swap_blocks", "swap_block_s"),
    "orca": _CONTINUOUS,
    "orca-article": (*_CONTINUOUS, *_RESORTING),
    "punica": (*_CONTINUOUS, "max_num_batched_tokens"),
    "static": _BATCHES,
    "bucketed": (*_BATCHES, "bucket_tokens"),
    "dynamic-batch": _BATCHES,
}
"""The settings that each scheduler goes by; another one would change nothing, which would read as a result."""
UNTOLD = {
    "prefix_caching": "which prompts begin alike",
    "order": "the priority and the deadline of each request",
    "aging": "the deadline of each request",
    **dict.fromkeys(
        ("max_adapters", "one_adapter", "adapter_load_s", "adapter_step_s", "adapter_token_s"),
        "the adapter of each request",
    ),
}
"""Settings whose effect rests on what no log tells of its requests."""


class Refused(Exception):
    """The log lacks something that a prediction needs."""


def changes_of(text: str) -> dict[str, object]:
    """Settings out of `max_num_seqs=512,chunked_prefill=off,scheduler=orca`, in the names of `EngineSettings`.

    Raises:
        DiagError: a part is no `name=value`, a name is unknown, or a value is not of the setting's kind.
    """
    known = {each.name: str(each.type) for each in fields(EngineSettings)}
    changes: dict[str, object] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not value:
            raise DiagError(f"{part[:60]!r} is no setting", hint="write it like max_num_seqs=512,chunked_prefill=off")
        name = name.removeprefix("enable_")
        if name not in known:
            raise UnknownNameError("setting", name, known)
        if name in changes:
            raise DiagError(f"{name} is given twice", hint="give each setting once")
        changes[name] = _value(name, value, known[name])
    if not changes:
        raise DiagError("no setting to change is given", hint="write it like max_num_seqs=512,scheduler=orca")
    return changes


def _value(name: str, value: str, kind: str) -> object:
    try:
        if kind == "bool":
            return _BOOLEANS[value.casefold()]
        if kind.startswith("tuple"):
            return tuple(int(each) for each in value.split("/"))
        if kind.startswith("int"):
            return int(value)
        return float(value) if kind.startswith("float") else value
    except (KeyError, ValueError):
        wanted = {"bool": "on or off", "int": "a whole number"}.get(kind.partition(" ")[0], "a number")
        wanted = "whole numbers like 256/512" if kind.startswith("tuple") else wanted
        raise DiagError(f"{name} is {value[:40]!r}", hint=f"give {wanted}") from None


def changed_settings(settings: EngineSettings, changes: dict[str, object]) -> EngineSettings:
    """The settings with the changes, each of which the changed engine has to go by and the log has to tell enough for.

    Raises:
        DiagError: a value cannot be, or its scheduler does not read the setting.
        Refused: the effect of a setting rests on what no log tells of requests, or several engines ran where the
            changed server is simulated as one.
    """
    changed = replace(settings, **changes)  # type: ignore[arg-type]
    untold = [name for name in changes if name in UNTOLD]
    if untold:
        raise Refused(f"what {untold[0]} does rests on {UNTOLD[untold[0]]}, which the log does not tell")
    read = READ_BY[changed.scheduler]
    idle = [name for name in changes if name not in ("scheduler", *read)]
    if idle:
        hint = f"it reads {', '.join(read)}"
        raise DiagError(f"the scheduler {changed.scheduler} has no {idle[0]}", hint=hint)
    if changed.scheduler == "bucketed" and not changed.bucket_tokens:
        raise DiagError("buckets need their upper ends", hint="write bucket_tokens=256/512/1024")
    if changed.data_parallel_size > 1 and not changed.continuous:
        raise Refused(
            f"{changed.data_parallel_size} engines ran, and a server that batches whole requests is simulated as one"
        )
    return changed


def taken_for_given(
    recording: Recording, requests: pl.DataFrame, settings: EngineSettings, changed: EngineSettings
) -> list[str]:
    """What the model takes for given, because the log does not tell it."""
    told = []
    limits = recording.deployments.select("max_running_count", "max_batch_tokens", "kv_cache_tokens")
    if any(limits[name].drop_nulls().n_unique() > 1 for name in limits.columns):
        told.append("the log tells of several configurations, of which the last one is taken for all of it")
    if max(settings.data_parallel_size, changed.data_parallel_size) > 1:
        told.append("engines that share the requests are taken to run in step, as a mixture of experts makes them")
    if settings.kv_cache_tokens is None and changed.kv_cache_tokens is None:
        told.append("the log does not tell the size of the KV pool, which is taken never to be full")
    if requests["cached_tokens"].max():
        told.append(
            "prompt tokens that the prefix cache held are part of the model's prompts: which prompts begin alike is "
            "not told"
        )
    if changed.scheduler.startswith("orca"):
        told.append(
            "what clients declare as their longest output is not told: Orca reserves here what is generated, so it "
            "fares better than it would"
        )
    if changed.scheduler == "orca-article":
        told.append("deadlines are not told: re-sorting costs its time here and changes no order")
    if not changed.continuous:
        told.append(f"batches of {changed.batch_size:,} requests (batch_size)")
    return told
