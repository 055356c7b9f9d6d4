"""`%diag watch`: a watch that runs beside the notebook, or in its cell for a stated time, and leaves a recording."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from infer_diag.diagnose import Diagnosis
from infer_diag.errors import DiagError, UnknownNameError
from infer_diag.jupyter.explore.shown import WidgetPanel, needs_widgets
from infer_diag.jupyter.panel import Panel
from infer_diag.jupyter.panels import findings_frame
from infer_diag.jupyter.session import Loaded, Session
from infer_diag.units import format_s
from infer_diag.watch import Live, View, live
from infer_diag.watch.targets import Target

if TYPE_CHECKING:
    from infer_diag.jupyter.watch_view import WatchView

_SECONDS_TO_END = 20.0
"""A look takes no longer than the slowest answer that is waited for, and one more diagnosis."""


class Watching:
    """One watch of a session; what it has seen is the session's recording of its name, from its first diagnosis on."""

    def __init__(self, session: Session, name: str, running: Live, folder: TemporaryDirectory[str] | Path) -> None:
        self.name = name
        self._session, self._live, self._folder = session, running, folder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._kept: Diagnosis | None = None
        self._view: WatchView | None = None
        self.last: View = running.view()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._live.over is not None or self._stop.is_set()

    def widget(self) -> WatchView:
        """What a notebook shows of it."""
        if self._view is None:
            from infer_diag.jupyter.watch_view import WatchView

            self._view = WatchView(self.name, self._stop.set)
        return self._view

    def begin(self) -> None:
        """Lets it run beside the notebook."""
        self._thread = threading.Thread(target=self._run_beside, daemon=True, name=f"infer_diag watch {self.name}")
        self._thread.start()

    def run(self) -> View:
        """Runs it here, to its end; an interrupt ends it as the button does."""
        return self._live.run(self._stop, self._show)

    def stop(self) -> None:
        """Ends it, and returns when it has kept what it saw."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_END)

    def _run_beside(self) -> None:
        try:
            self.run()
        except Exception as error:  # Nothing else would ever show what ended a thread.
            self._stop.set()
            self._live.close()
            if self._view is not None:
                self._view.failed(f"{self.name}: the watch cannot go on ({type(error).__name__}: {error})")

    def _show(self, view: View) -> None:
        self.last = view
        if view.diagnosis is not None and view.diagnosis is not self._kept:
            self._kept = view.diagnosis
            self._keep(view.diagnosis)
        if self._view is not None:
            self._view.show(view)

    def _keep(self, diagnosis: Diagnosis) -> None:
        paths = tuple(source.path for source in diagnosis.recording.sources)
        named = ", ".join(map(repr, paths))
        code = f"recording = diag.load({named})"
        if isinstance(self._folder, TemporaryDirectory):
            code = f"# watched live as {self.name}; --out keeps it\n{code}"
        loaded = Loaded(self.name, diagnosis.recording, paths, code)
        if self.name in self._session.loaded:
            self._session.loaded[self.name] = loaded
        else:
            self._session.add(loaded)


def begin(
    session: Session,
    targets: list[Target],
    *,
    every_s: float,
    for_s: float | None,
    tz: str | None = None,
    name: str | None = None,
    out: str | None = None,
    beside: bool,
    show: Callable[[Panel], object] | None = None,
) -> Panel:
    """Begins a watch; beside the notebook it returns at once, else when the watch is over, its widget given to `show`.

    Raises:
        ProbeUnavailable: GPUs are to be watched and there is none.
        DiagError: widgets cannot be made, or the watch has ended here and nothing was seen.
    """
    if beside or show is not None:
        needs_widgets()
    called = name or _name(session, targets[0])
    _ended(session, called)
    folder = Path(out).expanduser() if out else TemporaryDirectory(prefix="infer_diag_watch_")
    place = folder if isinstance(folder, Path) else Path(folder.name)
    running = live(targets, place, every_s=every_s, for_s=for_s, tz=tz)
    watching = Watching(session, called, running, folder)
    session.watches[called] = watching
    labels = ", ".join(target.label for target in targets)
    about = f"every {format_s(every_s)}" + (f" for {format_s(for_s)}" if for_s is not None else "")
    begun = f"watching {labels} {about}; what it sees is {called}, %diag watch --stop ends it"
    if beside:
        panel = WidgetPanel(called, begun, widget=watching.widget().view)
        watching.begin()
        return panel
    if show is not None:
        show(WidgetPanel(called, begun, widget=watching.widget().view))
    return _told(called, watching.run())


def stop(session: Session, name: str | None) -> Panel:
    """Ends the watch of this name, or all that still run.

    Raises:
        UnknownNameError: there is no such watch.
        DiagError: none runs.
    """
    going = {each: watching for each, watching in session.watches.items() if not watching.is_over}
    if name is not None and name not in going:
        raise UnknownNameError("running watch", name, going)
    ended = [watching for each, watching in going.items() if name in (None, each)]
    if not ended:
        raise DiagError("no watch is running", hint="%diag watch http://host:8000/metrics begins one")
    for watching in ended:
        watching.stop()
    if len(ended) == 1:
        return _told(ended[0].name, ended[0].last)
    return Panel(f"{len(ended)} watches ended", ", ".join(watching.name for watching in ended))


def _told(name: str, view: View) -> Panel:
    lines = view.lines
    if view.diagnosis is None:
        raise DiagError(f"{lines[0]}, and nothing was seen ({'; '.join(lines[1:])})", hint="check what is watched")
    states = len(view.states)
    return Panel(
        f"watched as {name}: {lines[0]}",
        "\n".join(lines[1 : 1 + states]),
        tuple(lines[1 + states :]),
        findings_frame(view.diagnosis.findings),
    )


def _ended(session: Session, name: str) -> None:
    before = session.watches.get(name)
    if before is not None and not before.is_over:
        before.stop()


def _name(session: Session, target: Target) -> str:
    """The host, the log's stem or `gpu`; numbered where something else has that name."""
    word = target.label.split("/")[0] if target.kind == "engine" else Path(target.place).name.split(".")[0]
    base = re.sub(r"\W+", "_", word).strip("_") or "watch"
    base = base if not base[0].isdigit() else f"host_{base}"
    name, number = base, 1
    while name in session.loaded and name not in session.watches:
        number += 1
        name = f"{base}_{number}"
    return name
