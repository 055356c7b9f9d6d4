"""How fast simulated allocators take a trace, beside a loop that only adds sizes and a plain Python model of PyTorch's.

    python benchmarks/allocator_replay_speed.py [--events 1000000] [--plain-events 100000] [--snapshot FILE]

Figures are events per CPU second of one process after compilation: allocations and frees of a server whose key and
value tensors grow by concatenation. The compiled loop that only adds sizes is the ceiling, the plain model (sorted
lists, bisection) the floor; it and ours find the same totals on the same events, or the run stops. With a snapshot the
whole way from its frames is measured: steps out of events, the heap at the beginning, and the replay.
"""

from __future__ import annotations

import argparse
import bisect
import random
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

from infer_diag.simulators.allocators import ALLOCATORS, Allocator, TorchSettings
from infer_diag.simulators.allocators.kinds import ALLOC, FREE
from infer_diag.simulators.allocators.loop import STEP
from infer_diag.simulators.replay import devices, replay

AIM_PER_S = 500_000
MIB = 1 << 20
RUNS = ALLOCATORS | {"torch, expandable": TorchSettings(expandable_segments=True)}


def server_steps(events: int, seed: int = 7) -> Any:
    """Steps of a server: 64 layers' tensors of up to 24 sequences grow, short-lived ones come and go between."""
    draw, rows, live, thing = random.Random(seed), [], [], 0
    while len(rows) < events:
        if len(live) < 24 * 64 or draw.random() < 0.02:
            size = int(draw.lognormvariate(13.5, 1.2)) + 1
            rows.append((ALLOC, thing, size))
            live.append((thing, size))
            thing += 1
        elif draw.random() < 0.35:
            rows += [(ALLOC, thing, draw.randrange(1, 8 * MIB)), (FREE, thing, 0)]
            thing += 1
        else:
            place = draw.randrange(len(live))
            old, size = live[place]
            size = size + 4096 if size < 32 * MIB else 4096
            rows += [(ALLOC, thing, size), (FREE, old, 0)]
            live[place] = (thing, size)
            thing += 1
    steps = np.zeros(events, STEP)
    steps["action"], steps["thing"], steps["size"] = np.array(rows[:events], np.int64).T
    return steps


@numba.njit
def added(steps: Any, sizes: Any) -> int:
    """The largest sum of what lives: the least that a loop over the events can do."""
    level = most = 0
    for step in steps:
        if step.action == ALLOC:
            sizes[step.thing] = step.size
            level += step.size
        else:
            level -= sizes[step.thing]
        most = max(most, level)
    return most


class PlainTorch:
    """PyTorch's allocator without settings, in Python: idle blocks in sorted lists, neighbours in dictionaries."""

    def __init__(self) -> None:
        self.free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self.blocks: dict[int, list[Any]] = {}
        self.above, self.reserved = 1 << 46, 0

    def malloc(self, asked: int) -> int:
        """The address of a new block."""
        size = max(512, -(-asked // 512) * 512)
        large = size > MIB
        idle = self.free[large]
        place = bisect.bisect_left(idle, (size, 0))
        if place < len(idle):
            _, address = idle.pop(place)
        else:
            whole = 2 * MIB if not large else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            address, self.above = self.above, self.above + whole + 2 * MIB
            self.blocks[address] = [whole, None, None, False, large]
            self.reserved += whole
        block = self.blocks[address]
        rest = block[0] - size
        if rest > MIB if large else rest >= 512:
            cut, after = address + size, block[2]
            self.blocks[cut] = [rest, address, after, False, large]
            if after is not None:
                self.blocks[after][1] = cut
            block[0], block[2] = size, cut
            bisect.insort(idle, (rest, cut))
        block[3] = True
        return address

    def release(self, address: int) -> None:
        """Frees a block and joins it with idle neighbours."""
        block = self.blocks[address]
        idle = self.free[block[4]]
        block[3] = False
        after, before = block[2], block[1]
        if after is not None and not self.blocks[after][3]:
            gone = self.blocks.pop(after)
            del idle[bisect.bisect_left(idle, (gone[0], after))]
            block[0], block[2] = block[0] + gone[0], gone[2]
            if gone[2] is not None:
                self.blocks[gone[2]][1] = address
        if before is not None and not self.blocks[before][3]:
            first = self.blocks[before]
            del idle[bisect.bisect_left(idle, (first[0], before))]
            del self.blocks[address]
            first[0], first[2] = first[0] + block[0], block[2]
            if block[2] is not None:
                self.blocks[block[2]][1] = before
            address, block = before, first
        bisect.insort(idle, (block[0], address))


def plain(steps: Any) -> int:
    """What the plain model reserves for the steps."""
    model, placed = PlainTorch(), {}
    for action, thing, size in zip(*(steps[name].tolist() for name in ("action", "thing", "size")), strict=True):
        if action == ALLOC:
            placed[thing] = model.malloc(size)
        else:
            model.release(placed.pop(thing))
    return model.reserved


def row(name: str, count: int, spent: float, note: str = "") -> None:
    """Prints one line."""
    print(f"{name:28}{count:>10,} events{count / spent:>14,.0f} per CPU s  {note}", flush=True)


def main() -> None:
    """Prints one line per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--plain-events", type=int, default=100_000)
    parser.add_argument("--snapshot", type=Path)
    options = parser.parse_args()
    steps = server_steps(options.events)
    sizes = np.zeros(len(steps), np.int64)
    added(steps[:10], sizes)
    began = time.process_time()
    added(steps, sizes)
    row("only adds sizes, compiled", len(steps), time.process_time() - began, "ceiling")
    short = steps[: options.plain_events]
    began = time.process_time()
    reserved = plain(short)
    row("plain Python model of torch", len(short), time.process_time() - began, "floor")
    ours = Allocator(keeps_log=False)
    ours.replay(short)
    if ours.counters.reserved_bytes != reserved:
        raise SystemExit(f"the models disagree: {ours.counters.reserved_bytes} and {reserved} bytes reserved")
    for name, settings in RUNS.items():
        for keeps_log in (False, True) if name == "torch" else (False,):
            Allocator(settings, limit_bytes=1 << 37, keeps_log=keeps_log).replay(steps[:10])
            allocator = Allocator(settings, limit_bytes=1 << 37, keeps_log=keeps_log)
            began = time.process_time()
            allocator.replay(steps)
            spent = time.process_time() - began
            note = f"aim {AIM_PER_S:,}" if name == "torch" else ""
            row(name + (", with its log" if keeps_log else ""), len(steps), spent, note)
    if options.snapshot is not None:
        from infer_diag.loaders import load

        for device in devices(load(str(options.snapshot))):
            replay(device)
            began = time.process_time()
            done = replay(device)
            row(
                "whole way from a snapshot", len(device.events), time.process_time() - began, f"{done.placed_ratio:.3f}"
            )


if __name__ == "__main__":
    main()
