"""Makes the sample `simulated/growing_caches`: a simulated PyTorch heap under a server that grows its KV caches.

    python benchmarks/simulate_heap.py sample_logs/simulated/growing_caches

Nothing of it was recorded: sizes, lengths, lifetimes and the clock are drawn from a fixed seed. What it shows is the
oldest way of keeping a KV cache: every 64 tokens each request's cache is copied into a larger tensor and the smaller
one freed, so that holes of every size stay behind while others live. The run ends where a request finds no room.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from infer_diag.simulators.allocators import Allocator, TorchSettings
from infer_diag.simulators.snapshot_file import Stack, write_snapshot

MIB = 1 << 20
LIMIT_BYTES = 2048 * MIB
WEIGHT_BYTES = [48 * MIB] * 16
TOKEN_BYTES = 96 << 10
GROWTH_TOKENS = 64
BATCH = 8
STEPS = 400
SEED = 5
FILE = "growing_caches/server.py"
ABOUT = {
    "shows": "a heap of KV caches that grow by copying, until a request fails beside enough idle bytes (simulated)",
    "provenance": "simulated",
    "made": "python benchmarks/simulate_heap.py sample_logs/simulated/growing_caches",
    "allocator": "the simulated caching allocator of PyTorch, default settings, on a device of 2 GiB",
    "seed": SEED,
    "licence": "Apache-2.0",
}


@dataclass
class Request:
    """One request: tokens so far and in the end, and the address of its cache."""

    tokens: int
    last: int
    cache: int


@dataclass
class Server:
    """The simulated server: its allocator, and who asked for what."""

    heap: Allocator = field(default_factory=lambda: Allocator(TorchSettings(), limit_bytes=LIMIT_BYTES))
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    stacks: dict[int, Stack] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def take(self, size: int, function: str, line: int) -> int | None:
        """The address of a new block, or null where none is to be had."""
        address = self.heap.malloc(size)
        if address is not None:
            self.stacks[address] = [{"filename": FILE, "line": line, "name": function}]
        return address

    def step(self) -> bool:
        """One decoding step; false where an allocation failed."""
        while len(self.requests) < BATCH:
            prompt, output = int(self.draw.lognormal(5.2, 0.9)), int(self.draw.lognormal(5.6, 0.8))
            cache = self.take(max(prompt, 1) * TOKEN_BYTES, "prefill", 31)
            if cache is None:
                return False
            self.requests.append(Request(prompt, prompt + min(output, 1500), cache))
        work = self.take(int(self.draw.integers(1, 12)) * MIB + 4096, "forward", 52)
        if work is None:
            return False
        for request in list(self.requests):
            if not self.grow(request):
                return False
        self.heap.free(work)
        return True

    def grow(self, request: Request) -> bool:
        """The next tokens of a request, in a larger cache beside the old one; false where it found no room."""
        request.tokens += GROWTH_TOKENS
        if request.tokens >= request.last:
            self.heap.free(request.cache)
            self.requests.remove(request)
            return True
        larger = self.take(request.tokens * TOKEN_BYTES, "grow_cache", 44)
        if larger is None:
            return False
        self.heap.free(request.cache)
        request.cache = larger
        return True


def main() -> None:
    """Writes the snapshot and what it is into the folder that is named."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    server = Server()
    for size in WEIGHT_BYTES:
        server.take(size, "load_weights", 12)
    steps = 0
    while steps < STEPS and server.step():
        steps += 1
    recording = server.heap.recording()
    events = recording.allocator_events
    begin = datetime(2026, 1, 5, 9, tzinfo=UTC)
    times = [begin + timedelta(milliseconds=11 * place) for place in range(len(events))]
    stamped = events.with_columns(pl.Series("time", times, dtype=pl.Datetime("us", "UTC")))
    write_snapshot(recording.replace(allocator_events=stamped), out / "snapshot.pickle", stacks=server.stacks)
    (out / "meta.json").write_text(json.dumps(ABOUT, indent=2) + "\n")
    print(f"{len(events):,} events, {len(recording.ooms)} failed, {(out / 'snapshot.pickle').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
