"""What keeps a configuration of the OpenTelemetry Collector from starting, or from doing what it looks like.

`faults(text_or_mapping)` lists all of it at once; `faults(ARTICLE_YAML)` says why the article's does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from infer_diag.errors import LogFormatError
from infer_diag.observability.collector_components import CHECKED, KINDS, SIGNALS, component

LARGEST_TEXT = 1 << 20
Weight = Literal["error", "warning"]
_ROLES = ("receivers", "processors", "exporters")
_PIPELINE_SIGNALS = (*SIGNALS, "profiles")
Section = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """One fault: `error` keeps the collector from starting, `warning` does not and is hardly meant."""

    weight: Weight
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.weight}: {self.where}: {self.what}"


def faults(config: str | Mapping[str, Any]) -> list[Fault]:
    """Every fault of a configuration, errors first; none where it starts and each of its parts is used.

    Raises:
        LogFormatError: the text is no YAML mapping.
    """
    told = _read(config) if isinstance(config, str) else dict(config)
    sections = {kind: _mapping(told.get(kind)) for kind in KINDS}
    service = _mapping(told.get("service"))
    pipelines = {str(name): _mapping(body) for name, body in _mapping(service.get("pipelines")).items()}
    found = [
        *_top(told),
        *_no_pipelines(pipelines),
        *(fault for name, body in pipelines.items() for fault in _pipeline(name, body, sections)),
        *_unused(sections, service, pipelines),
        *_connector_ends(sections, pipelines),
        *_extensions(sections, service),
        *(fault for kind in KINDS for name, body in sections[kind].items() for fault in _settings(kind, name, body)),
        *_storages(sections, service),
    ]
    return sorted(dict.fromkeys(found), key=lambda fault: fault.weight == "warning")


def _read(text: str) -> Section:
    if len(text) > LARGEST_TEXT:
        raise LogFormatError("the configuration holds more than 1 MiB", hint="a collector's has some hundred lines")
    try:
        told = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise LogFormatError(f"the configuration is no YAML{where}: {said}") from error
    if not isinstance(told, dict):
        raise LogFormatError("the configuration is no YAML mapping", hint="it begins with receivers:, exporters: …")
    return told


def _mapping(value: object) -> Section:
    return {str(name): body for name, body in value.items()} if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    return [str(name) for name in value] if isinstance(value, list) else []


def _top(told: Section) -> Iterator[Fault]:
    for name, body in told.items():
        if name not in (*KINDS, "service"):
            yield Fault("error", str(name), "the collector knows no such section")
        elif body is not None and not isinstance(body, dict):
            yield Fault("error", str(name), "is no mapping")
    for kind in ("receivers", "exporters"):
        if not told.get(kind):
            yield Fault("error", kind, "none is declared, and a pipeline needs one")


def _no_pipelines(pipelines: dict[str, Section]) -> Iterator[Fault]:
    if not pipelines:
        what = "is missing: without a pipeline nothing is received or sent, and the collector does not start"
        yield Fault("error", "service.pipelines", what)
        return
    for signal in SIGNALS:
        if signal not in {name.partition("/")[0] for name in pipelines}:
            yield Fault("warning", "service.pipelines", f"there is none for {signal}: what comes of them is refused")


def _pipeline(name: str, body: Section, sections: dict[str, Section]) -> Iterator[Fault]:
    where, signal = f"service.pipelines.{name}", name.partition("/")[0]
    if signal not in _PIPELINE_SIGNALS:
        yield Fault("error", where, f"{signal} is no signal ({', '.join(_PIPELINE_SIGNALS)})")
    for role in sorted(set(body) - set(_ROLES)):
        yield Fault("error", where, f"{role} is no part of a pipeline")
    for role in _ROLES:
        names = _names(body.get(role))
        if not names and role != "processors":
            yield Fault("error", where, f"has no {role}")
        for each in sorted({each for each in names if names.count(each) > 1}):
            yield Fault("error", where, f"{role} name {each} twice")
        for each in names:
            yield from _member(where, signal, role, each, sections)
    yield from _order(where, _names(body.get("processors")))


def _member(where: str, signal: str, role: str, name: str, sections: dict[str, Section]) -> Iterator[Fault]:
    is_connector = role != "processors" and name in sections["connectors"]
    if name not in sections[role] and not is_connector:
        yield Fault("error", where, f"{role} name {name}, which is not declared under {role}")
        return
    known = component("connectors" if is_connector else role, name)
    carries = known is None or signal in known.signals or (is_connector and role == "receivers")
    if not carries and known is not None:
        yield Fault("error", where, f"{name} takes {', '.join(known.signals)} and no {signal}")


def _order(where: str, processors: list[str]) -> Iterator[Fault]:
    kinds = [name.partition("/")[0] for name in processors]
    if "memory_limiter" not in kinds:
        yield Fault("warning", where, "has no memory_limiter: a burst, or a target that is slow, ends the collector")
    elif kinds[0] != "memory_limiter":
        yield Fault("warning", where, "memory_limiter is not the first processor, so it refuses too late")
    if "batch" in kinds and "tail_sampling" in kinds and kinds.index("batch") < kinds.index("tail_sampling"):
        yield Fault("warning", where, "batch stands before tail_sampling, which takes its batches apart again")


def _unused(sections: dict[str, Section], service: Section, pipelines: dict[str, Section]) -> Iterator[Fault]:
    used = {(role, name) for body in pipelines.values() for role in _ROLES for name in _names(body.get(role))}
    for role in _ROLES:
        for name in sections[role]:
            if (role, name) not in used:
                yield Fault("warning", f"{role}.{name}", "is declared and stands in no pipeline, so it does nothing")
    for name in sections["extensions"]:
        if name not in _names(service.get("extensions")):
            yield Fault("warning", f"extensions.{name}", "is declared and not listed in service.extensions")


def _connector_ends(sections: dict[str, Section], pipelines: dict[str, Section]) -> Iterator[Fault]:
    for name in sections["connectors"]:
        ends_one = [key for key, body in pipelines.items() if name in _names(body.get("exporters"))]
        begins_one = [key for key, body in pipelines.items() if name in _names(body.get("receivers"))]
        where = f"connectors.{name}"
        if not ends_one and not begins_one:
            yield Fault("warning", where, "is declared and stands in no pipeline, so it does nothing")
        elif not begins_one:
            yield Fault("error", where, f"ends {', '.join(ends_one)} and begins no pipeline as a receiver")
        elif not ends_one:
            yield Fault("error", where, f"begins {', '.join(begins_one)} and ends no pipeline as an exporter")
        elif set(ends_one) & set(begins_one):
            yield Fault("error", where, f"ends and begins {', '.join(set(ends_one) & set(begins_one))}: a circle")


def _extensions(sections: dict[str, Section], service: Section) -> Iterator[Fault]:
    for name in _names(service.get("extensions")):
        if name not in sections["extensions"]:
            yield Fault("error", "service.extensions", f"names {name}, which is not declared under extensions")


def _settings(kind: str, name: str, body: object) -> Iterator[Fault]:
    where, known, told = f"{kind}.{name}", component(kind, name), _mapping(body)
    if body is not None and not isinstance(body, dict):
        yield Fault("error", where, "is no mapping")
    if known is None:
        yield Fault("warning", where, f"is no component known here (documentation of {CHECKED}); nothing was checked")
        return
    if known.alias is not None and name.partition("/")[0] == known.alias:
        yield Fault("warning", where, f"{known.alias} is the old name of {known.name}")
    for each in sorted(set(told) - known.fields):
        what = f"{each} is no setting known here (documentation of {CHECKED}); the collector refuses unknown ones"
        yield Fault("warning", where, what)
    for each in known.required:
        if told.get(each) in (None, "", [], {}):
            yield Fault("error", where, f"{each} is not set, and it has no default")
    if known.name == "otlp_http" and not any(key.endswith("endpoint") and told[key] for key in told):
        yield Fault("error", where, "endpoint is not set, and it has no default")
    if known.name == "prometheus" and not _mapping(told.get("config")).get("scrape_configs"):
        yield Fault("error", where, "config.scrape_configs names nothing to scrape")
    if known.name == "memory_limiter" and not (told.get("limit_mib") or told.get("limit_percentage")):
        yield Fault("error", where, "neither limit_mib nor limit_percentage is set")


def _storages(sections: dict[str, Section], service: Section) -> Iterator[Fault]:
    """Storage that receivers and queues ask for, which has to be an extension that runs."""
    for kind in ("receivers", "exporters"):
        for name, body in sections[kind].items():
            told = _mapping(body)
            for storage in (told.get("storage"), _mapping(told.get("sending_queue")).get("storage")):
                if isinstance(storage, str) and storage not in _names(service.get("extensions")):
                    yield Fault("error", f"{kind}.{name}", f"storage {storage} is not listed in service.extensions")
