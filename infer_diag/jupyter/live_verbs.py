"""The verbs that stay alive in the notebook: `%diag explore` and `%diag watch`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from IPython.core.getipython import get_ipython
from IPython.display import display

from infer_diag.errors import DiagError
from infer_diag.jupyter import watch
from infer_diag.jupyter.completion import completed, paths
from infer_diag.jupyter.explore import explore, explorer_panel
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.session import Session
from infer_diag.units import parse_duration_s
from infer_diag.watch import target
from infer_diag.watch.targets import GPU

Run = Callable[[Session, argparse.Namespace], Panel]
Code = Callable[[Session, argparse.Namespace], str]
Verb = Callable[[str, Run, Code], argparse.ArgumentParser]


def explore_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Look into a recording: pages, a window on its serving, a block map to zoom, and the lines behind each number."""
    loaded = session.get(options.recording)
    before = session.explorers.get(loaded.name)
    if before is None or before.model.recording is not loaded.recording:
        if before is not None:
            before.close()
        session.explorers[loaded.name] = explore(loaded.diagnosis)
    return explorer_panel(session.explorers[loaded.name], loaded.name)


def explore_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag explore`."""
    code = session.get(options.recording).code
    imports = "import infer_diag as diag\nfrom infer_diag.jupyter.explore import explore"
    return f"{imports}\n{code}\nexplore(diag.diagnose(recording)).view"


def watch_verb(session: Session, options: argparse.Namespace) -> Panel:
    """Watch GPUs, a running engine or a growing log; what is seen becomes a recording, with findings as they arise."""
    if options.stop:
        return watch.stop(session, options.targets[0] if options.targets else None)
    has_front_end = getattr(get_ipython(), "kernel", None) is not None
    targets = [target(text) for text in options.targets or [GPU]]
    for_s = parse_duration_s(options.for_time) if options.for_time else None
    return watch.begin(
        session,
        targets,
        every_s=parse_duration_s(options.every),
        for_s=for_s,
        tz=options.tz,
        name=options.name,
        out=options.out,
        # A cell that states how long it takes is waited for, so that the next one has the recording; and where no
        # kernel is, nothing could show what runs beside.
        beside=for_s is None and has_front_end,
        show=display if has_front_end else None,
    )


def watch_code(session: Session, options: argparse.Namespace) -> str:
    """The Python of `%diag watch`."""
    if options.stop:
        raise DiagError("--stop ends what this session runs and has no Python of its own", hint="stop.set() in it")
    made = ", ".join(f"target({text!r})" for text in options.targets or [GPU])
    limit = f", for_s={parse_duration_s(options.for_time):g}" if options.for_time else ""
    every = f"every_s={parse_duration_s(options.every):g}"
    return (
        "import threading\nfrom pathlib import Path\nfrom infer_diag.watch import live, target\n"
        f"stop = threading.Event()\nwatch = live([{made}], Path({options.out or 'watched'!r}), {every}{limit})\n"
        "watch.run(stop, lambda view: print(view.lines[0]))\nrecording = watch.recording()"
    )


def add_live_verbs(verb: Verb, session: Session) -> None:
    """Adds both to the grammar."""
    looked = verb("explore", explore_verb, explore_code)
    named = looked.add_argument("recording", metavar="RECORDING", nargs="?", help="its name (the last one loaded)")
    completed(named, lambda token: session.names())
    watched = verb("watch", watch_verb, watch_code)
    what = watched.add_argument(
        "targets", metavar="TARGET", nargs="*", help="gpu, http://HOST:PORT/metrics, or a log that still grows (gpu)"
    )
    completed(what, lambda token: [*(word for word in (GPU, "http://") if not token), *paths(token)])
    watched.add_argument("--every", metavar="TIME", default="2s", help="time between two looks (2s)")
    watched.add_argument("--for", dest="for_time", metavar="TIME", help="end after this time; the cell waits for it")
    watched.add_argument(
        "--as", dest="name", metavar="NAME", help="name of the recording (the host, or the log's stem)"
    )
    folder = watched.add_argument("--out", metavar="DIR", help="keep the scrapes and samples in this folder")
    completed(folder, paths)
    watched.add_argument("--tz", metavar="ZONE", help="time zone of a log's stamps that name none")
    watched.add_argument("--stop", action="store_true", help="end the watch of this name, or all of them")
