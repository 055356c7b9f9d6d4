"""Summarise what the client saw, and make recordings neutral."""

from __future__ import annotations

import re
import socket
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from client import Seen
from metrics import read_counter

ADDRESS = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")
KEPT_ADDRESSES = ("0.0.0.0", "255.255.255.255")
NEUTRAL_ADDRESS = "192.0.2.2"
COUNTERS = {
    "preemptions": "num_preemptions_total",
    "prompt_tokens": "prompt_tokens_total",
    "prompt_tokens_cached": "prompt_tokens_cached_total",
    "generation_tokens": "generation_tokens_total",
    "requests_finished": "request_success_total",
}


def quantile(values: list[float], share: float) -> float:
    """Return a quantile by linear interpolation between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": round(statistics.fmean(values), 4),
        "p50": round(quantile(values, 0.50), 4),
        "p95": round(quantile(values, 0.95), 4),
        "max": round(max(values), 4),
    }


def client_summary(seen: Iterable[Seen]) -> dict:
    """Return counts, throughput and latencies over the finished requests.

    TTFT is first token minus send.  TPOT is (last token - first token) divided
    by (output tokens - 1), so the first token is not in it and requests with
    one token are left out.
    """
    seen = list(seen)
    done = [each for each in seen if each.finish_reason and each.output_tokens]
    if not done:
        return {"sent": len(seen), "finished": 0}
    wall = max(each.last_token_s for each in done) - min(each.send_s for each in seen)
    tokens = sum(each.output_tokens for each in done)
    tpot = [
        (each.last_token_s - each.first_token_s) / (each.output_tokens - 1) for each in done if each.output_tokens > 1
    ]
    return {
        "sent": len(seen),
        "finished": len(done),
        "finish_reasons": dict(Counter(each.finish_reason for each in done)),
        "wall_s": round(wall, 3),
        "prompt_tokens": sum(each.prompt_tokens for each in done),
        "output_tokens": tokens,
        "output_tokens_per_s": round(tokens / wall, 2),
        "ttft_s": _spread([each.first_token_s - each.send_s for each in done]),
        "tpot_s": _spread(tpot),
        "e2e_s": _spread([each.last_token_s - each.send_s for each in done]),
    }


def request_table(seen: Iterable[Seen], epoch: float) -> str:
    """Return the finished requests as CSV, times in seconds since 1970 as the server's clock has them."""
    lines = ["start,request_id,arrival_unix_s,first_token_unix_s,last_token_unix_s,prompt_tokens,output_tokens"]
    for each in seen:
        if each.first_token_s is not None:
            times = (each.send_s, each.first_token_s, each.last_token_s)
            clock = ",".join(f"{epoch + time:.6f}" for time in times)
            lines.append(f"{each.start},{each.request_id},{clock},{each.prompt_tokens},{each.output_tokens}")
    return "\n".join(lines) + "\n"


def server_counters(scrape: str) -> dict[str, int]:
    """Return the counters of the last scrape under short names."""
    return {name: int(read_counter(scrape, family)) for name, family in COUNTERS.items()}


class Neutral:
    """Replaces this machine's paths, names and addresses by neutral ones."""

    def __init__(self, paths: dict[Path, str]) -> None:
        """Take ``paths`` as found here and what shall stand in their place."""
        pairs = {str(path): to for path, to in paths.items()}
        pairs |= {str(path.resolve()): to for path, to in paths.items()}
        self.pairs = sorted(pairs.items(), key=lambda pair: -len(pair[0]))
        self.host = socket.gethostname()

    def __call__(self, text: str) -> str:
        """Return ``text`` with every replacement made."""
        for found, to in self.pairs:
            text = text.replace(found, to)
        if len(self.host) > 2:
            text = re.sub(rf"(?<![\w.-]){re.escape(self.host)}(?![\w-])", "host", text)
        return ADDRESS.sub(_neutral_address, text)


def _neutral_address(match: re.Match[str]) -> str:
    found = match[1]
    is_address = all(int(part) < 256 for part in found.split("."))
    if not is_address or found.startswith("127.") or found in KEPT_ADDRESSES:
        return found
    return NEUTRAL_ADDRESS
