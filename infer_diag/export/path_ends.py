"""What the ends of the path Envoy → SDK → collector → Loki and Tempo hand out, and whether it is still the same.

`handed_out` gives lines and spans the shape in which each end keeps or answers them, so that the loaders which read the
ends can be shown and tested without a server.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from infer_diag.diagnose import Diagnosis
from infer_diag.errors import LogFormatError

_IDS = ("traceId", "spanId", "parentSpanId")


def handed_out(lines: str, exported: str) -> dict[str, str]:
    """The collector's file of logs, Loki's answer and Tempo's answer, by the name of the end.

    Args:
        lines: of a pod, each behind its runtime's stamp (`2026-01-23T12:34:56.789012345Z text`, a prefix in brackets
            before it).
        exported: OTLP's JSON, an export a line, as `otlp` writes it.

    Raises:
        LogFormatError: a line has no such stamp.
    """
    told = [_stamped(line) for line in lines.splitlines() if line.strip()]
    records = [{"timeUnixNano": stamp, "body": {"stringValue": text}} for stamp, text in told]
    newest_first = [{"stream": {"app": "engine"}, "values": [list(each) for each in reversed(told)]}]
    spans = [one for line in exported.splitlines() for one in json.loads(line).get("resourceSpans", ())]
    return {
        "Collector": json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}),
        "Loki": json.dumps({"status": "success", "data": {"resultType": "streams", "result": newest_first}}),
        "Tempo": json.dumps({"batches": [_in_base64(one) for one in spans]}),
    }


def same_phases(before: Diagnosis, after: Diagnosis) -> tuple[int, int]:
    """(phases whose length is the same in both, phases of the first)."""
    known, found = _lengths(before), _lengths(after)
    return sum(key in found and found[key] == length for key, length in known.items()), len(known)


def _lengths(diagnosis: Diagnosis) -> dict[tuple[str, str, str | None], float | None]:
    rows = diagnosis.cold_start.phases.iter_rows(named=True)
    return {(row["start_id"], row["phase"], row["rank"]): row["duration_s"] for row in rows if row["chosen"]}


def _stamped(line: str) -> tuple[str, str]:
    """Nanoseconds since 1970 as text, and what stands behind the stamp."""
    body = line.partition("] ")[2] if line.startswith("[") else line
    stamp, _, text = body.partition(" ")
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    try:
        seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
        return str(seconds * 10**9 + int(fraction[:9].ljust(9, "0") or "0")), text
    except ValueError:
        raise LogFormatError(
            f"{line[:40]!r} has no stamp in front", hint="kubectl logs --timestamps writes one"
        ) from None


def _in_base64(resource: dict[str, Any]) -> dict[str, Any]:
    """Tempo answers with protobuf's own JSON, in which ids are base64."""

    def one(span: dict[str, Any]) -> dict[str, Any]:
        ids = {name: base64.b64encode(bytes.fromhex(span[name])).decode() for name in _IDS if name in span}
        return {**span, **ids}

    scopes = [{**scope, "spans": [one(span) for span in scope["spans"]]} for scope in resource["scopeSpans"]]
    return {**resource, "scopeSpans": scopes}
