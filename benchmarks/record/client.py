"""Send a workload to a server and write down what the client sees."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import asdict, dataclass, replace

from scenarios import Mix, Workload
from server import SERVED_NAME

LETTERS = "abcdefghijklmnopqrstuvwxyz     ,."


@dataclass
class Planned:
    """One request as it will be sent; ``at`` counts from the start of the load."""

    index: int
    at: float
    prompt: str
    max_tokens: int
    may_stop: bool


@dataclass
class Seen:
    """One request as the client saw it; times in seconds on the client's clock."""

    start: int
    index: int
    request_id: str
    send_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    longest_gap_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None

    def line(self) -> str:
        """Return the record as one line of JSON."""
        values = {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in asdict(self).items()
            if key != "error" or value is not None
        }
        return json.dumps(values)


class Clock:
    """Seconds since an epoch, steady while the process lives."""

    def __init__(self, epoch: float) -> None:
        """Tie the steady clock to ``epoch``, a Unix time."""
        self.epoch = epoch
        self._offset = time.time() - epoch - time.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.monotonic() + self._offset


def _arrivals(load: Workload, rng: random.Random) -> list[float]:
    times, now = [], 0.0
    for index in range(load.count):
        if load.burst_size and index % load.burst_size == 0:
            now = load.burst_every * (index // load.burst_size)
        now += rng.expovariate(load.rate)
        times.append(now)
    return times


def _prompt(mix: Mix, rng: random.Random, shared: str) -> str:
    length = rng.randint(*mix.prompt)
    own = "".join(rng.choice(LETTERS) for _ in range(length - mix.shared_prefix))
    return shared[: mix.shared_prefix] + own


def plan(load: Workload, seed: int) -> list[Planned]:
    """Draw the requests of a workload; the same seed gives the same requests."""
    rng = random.Random(seed)
    shared = "".join(rng.choice(LETTERS) for _ in range(1024))
    requests = []
    for index, at in enumerate(_arrivals(load, rng)):
        mix = rng.choices(load.mixes, [mix.weight for mix in load.mixes])[0]
        prompt = _prompt(mix, rng, shared)
        output = rng.randint(*mix.output)
        requests.append(Planned(index, at, prompt, output, rng.random() < load.may_stop))
    return requests


def _body(request: Planned) -> dict:
    return {
        "model": SERVED_NAME,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "ignore_eos": not request.may_stop,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class Client:
    """Streams completions from one server and keeps what it saw."""

    def __init__(self, session, url: str, clock: Clock, start: int) -> None:
        """Use ``session`` for the server at ``url``; ``start`` numbers the server start."""
        self.session = session
        self.url = url
        self.clock = clock
        self.start = start
        self.seen: list[Seen] = []

    async def run(self, requests: list[Planned], one_by_one: bool = False) -> list[Seen]:
        """Send every request at its time, or each after the one before, and return when all have ended."""
        begun = self.clock.now()
        if one_by_one:
            for request in requests:
                await self._send(replace(request, at=0.0), begun)
            return self.seen
        await asyncio.gather(*(self._send(request, begun) for request in requests))
        return sorted(self.seen, key=lambda seen: seen.index)

    async def _send(self, request: Planned, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + request.at - self.clock.now()))
        seen = Seen(self.start, request.index, "", send_s=self.clock.now())
        self.seen.append(seen)
        try:
            address = f"{self.url}/v1/completions"
            async with self.session.post(address, json=_body(request)) as answer:
                seen.status = answer.status
                if answer.status == 200:
                    await self._read(answer, seen)
                else:
                    seen.error = (await answer.text())[:300]
        except Exception as problem:  # a lost request is a result, not a failure
            seen.error = f"{type(problem).__name__}: {problem}"[:300]

    async def _read(self, answer, seen: Seen) -> None:
        async for raw in answer.content:
            now = self.clock.now()
            text = raw.decode("utf-8").strip()
            if text.startswith("data: ") and text != "data: [DONE]":
                _take(json.loads(text.removeprefix("data: ")), now, seen)


def _take(chunk: dict, now: float, seen: Seen) -> None:
    if "error" in chunk:
        seen.error = json.dumps(chunk["error"])[:300]
        return
    seen.request_id = chunk.get("id", seen.request_id)
    if usage := chunk.get("usage"):
        seen.prompt_tokens = usage["prompt_tokens"]
        seen.output_tokens = usage["completion_tokens"]
    for choice in chunk.get("choices", ()):
        if seen.first_token_s is None:
            seen.first_token_s = now
        else:
            seen.longest_gap_s = max(seen.longest_gap_s or 0.0, now - seen.last_token_s)
        seen.last_token_s = now
        seen.finish_reason = choice.get("finish_reason") or seen.finish_reason
