"""Labels that a user hangs on what is exported: checked, few, and kept off metrics where their values never end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from infer_diag.errors import DiagError
from infer_diag.redact import redact

MOST_LABELS = 8
MOST_CHARACTERS = 128
UNBOUNDED = (
    "order_id",
    "request_id",
    "trace_id",
    "span_id",
    "session_id",
    "conversation_id",
    "transaction_id",
    "invoice_id",
    "message_id",
    "user_id",
    "customer_id",
    "uuid",
)
"""Last parts of names whose values never end: each value on a metric would be a new time series for good."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*", re.ASCII)
_LONGEST_NAME = 64
_OWN = ("infer_diag", "service", "telemetry", "otel")
_TAKEN = frozenset(
    {"le", "quantile", "job", "instance", "start_id", "phase", "status", "outcome", "severity", "finding", "source"}
    | {"statistic", "replica", "kind", "gpu", "partition", "part", "engine", "clock"}
)
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_EXAMPLE = "write them like tenant_id=acme"


@dataclass(frozen=True)
class Labels:
    """Labels of spans, and those of them that metrics carry too."""

    of_spans: dict[str, str] = field(default_factory=dict)
    of_metrics: dict[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which labels stay off the metrics."""
        left = ", ".join(name for name in self.of_spans if name not in self.of_metrics)
        return (f"{left}: on spans alone, since every value would make new time series",) if left else ()


def checked(labels: Mapping[str, str] | None) -> Labels:
    """The labels, in the order of their names.

    Raises:
        DiagError: a name or a value is none that every backend takes, there are too many, or a value holds a secret.
    """
    given = dict(sorted((labels or {}).items()))
    if len(given) > MOST_LABELS:
        raise DiagError(f"{len(given)} labels are too many", hint=f"give {MOST_LABELS} at most")
    seen: set[str] = set()
    for name, value in given.items():
        _check(name, value)
        flat = name.replace(".", "_")
        if flat in seen:
            raise DiagError(f"two labels are {flat!r} once dots are underscores", hint="name one of them otherwise")
        seen.add(flat)
    bounded = {name: value for name, value in given.items() if not _is_unbounded(name)}
    return Labels(given, bounded)


def written(texts: Iterable[str]) -> dict[str, str]:
    """Labels written as `NAME=VALUE`.

    Raises:
        DiagError: one is not written so, or a name comes twice.
    """
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise DiagError(f"{redact(text)[:40]!r} is no label", hint="write NAME=VALUE, such as tenant_id=acme")
        if name in labels:
            raise DiagError(f"the label {redact(name)[:40]!r} is given twice", hint="one value a label")
        labels[name] = value
    return labels


def _is_unbounded(name: str) -> bool:
    flat = name.replace(".", "_")
    return any(flat == last or flat.endswith(f"_{last}") for last in UNBOUNDED)


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise DiagError(
            f"{redact(name)[:40]!r} is no name of a label", hint=f"small letters, digits, _ and dots; {_EXAMPLE}"
        )
    if name in _TAKEN or name.split(".")[0] in _OWN or name.startswith("infer_diag_"):
        raise DiagError(f"the label {name!r} is taken: what is exported carries it already", hint="choose another name")
    if not isinstance(value, str) or not value.strip():
        raise DiagError(f"the label {name!r} has no value", hint=_EXAMPLE)
    if len(value) > MOST_CHARACTERS or _ODD.search(value):
        raise DiagError(
            f"the value of the label {name!r} is too long or holds characters that cannot be shown",
            hint=f"at most {MOST_CHARACTERS} printable characters",
        )
    if redact(f"{name}={value}") != f"{name}={value}":
        raise DiagError(f"the value of the label {name!r} looks like a secret", hint="backends show labels to everyone")
