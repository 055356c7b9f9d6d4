"""The process that is traced: it builds a text-generation pipeline and writes when each part of that began and ended.

It runs under the user's interpreter, which need not have infer_diag, so it imports nothing but the standard library
before the phase `imports`. Arguments: the launch on the monotonic clock, the trace file, the model folder, the prompt.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

TOKENS = 2


class Trace:
    """Writes one JSON object per event, each as soon as it happens, so that a killed start leaves what it reached."""

    def __init__(self, file: IO[str], launch_s: float) -> None:
        self._file, self._launch_s = file, launch_s

    def event(self, event: str, phase: str, at_s: float | None = None, **fields: Any) -> None:
        """Writes an event that happens now, or happened at a time of the monotonic clock."""
        now = time.monotonic()
        moment = now if at_s is None else at_s
        wall = datetime.fromtimestamp(time.time() - (now - moment), tz=timezone.utc)  # noqa: UP017
        row = {
            "infer_diag": "pipeline_start",
            "version": 1,
            "event": event,
            "phase": phase,
            "time_s": round(moment - self._launch_s, 6),
            "wall": wall.isoformat(timespec="microseconds"),
            "cpu_s": 0.0 if moment == self._launch_s else round(time.process_time(), 6),
            **fields,
        }
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    @contextmanager
    def phase(self, name: str, **fields: Any) -> Iterator[None]:
        """A phase from here to the end of the block, and the memory that the process has taken until then."""
        self.event("phase_begin", name, **fields)
        yield
        self.event("phase_end", name)
        self.memory(name)

    def memory(self, phase: str) -> None:
        """Largest resident memory so far, files that are mapped included."""
        unit = 1 if sys.platform == "darwin" else 1024
        self.event("memory", phase, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


class Tokens:
    """What transformers calls a streamer: it is handed the prompt first, then every token as it comes."""

    def __init__(self, trace: Trace, request: int) -> None:
        self._trace, self._request, self._count = trace, request, -1

    def put(self, value: Any) -> None:
        """Takes the prompt or a token."""
        self._count += 1
        if not 0 < self._count <= TOKENS:
            return
        phase = "second_request"
        if self._request == 1:
            phase = "first_token" if self._count == 1 else "second_token"
            self._trace.event("phase_end", phase)
        self._trace.event("token", phase, request=self._request, token=self._count)
        if self._request == 1 and self._count < TOKENS:
            self._trace.event("phase_begin", "second_token")

    def end(self) -> None:
        """Takes the end of the answer."""


def main(launch_s: float, path: str, model: str, prompt: str, cache: str) -> None:
    """Traces one start and two requests of two tokens each."""
    with Path(path).open("w", encoding="utf-8") as file:
        trace = Trace(file, launch_s)
        trace.event("phase_begin", "process", at_s=launch_s, cache=cache)
        trace.event("phase_end", "process")
        with trace.phase("imports"):
            # -X importtime does not see what importlib.import_module brings in.
            torch = __import__("torch")
            transformers = __import__("transformers")
        with trace.phase("tokenizer", torch=torch.__version__, transformers=transformers.__version__):
            tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        with trace.phase("config"):
            config = transformers.AutoConfig.from_pretrained(model)
        loaded = _loaded(trace, transformers, config, model)
        with trace.phase("pipeline"):
            pipe = transformers.pipeline("text-generation", model=loaded, tokenizer=tokenizer)
        for request in (1, 2):
            trace.event("phase_begin", "first_token" if request == 1 else "second_request")
            streamer = Tokens(trace, request)
            pipe(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, streamer=streamer)
            if request == 2:
                trace.event("phase_end", "second_request")
        trace.memory("second_request")


def _loaded(trace: Trace, transformers: Any, config: Any, model: str) -> Any:
    """The model, with `build` from the begin to the end of its constructor and `weights` for the rest of the loading.

    Where the class of the model is not one of transformers' own, both are one phase, `weights`.
    """
    name = (getattr(config, "architectures", None) or [""])[0]
    kind = getattr(transformers, name, None)
    if kind is None:
        with trace.phase("weights"):
            return transformers.AutoModelForCausalLM.from_pretrained(model, config=config)
    constructor: Callable[..., None] = kind.__init__

    def built(self: Any, *words: Any, **named: Any) -> None:
        trace.event("phase_begin", "build")
        constructor(self, *words, **named)
        trace.event("phase_end", "build")
        trace.event("phase_begin", "weights")

    kind.__init__ = built
    try:
        made = kind.from_pretrained(model, config=config)
    finally:
        kind.__init__ = constructor
    trace.event("phase_end", "weights")
    trace.memory("weights")
    return made


if __name__ == "__main__":
    # The folder of this file is no place to import from: its modules would hide others of the same name.
    del sys.path[0]
    main(float(sys.argv[1]), *sys.argv[2:6])
