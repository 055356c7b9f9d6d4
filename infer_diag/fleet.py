"""A named collection of deployments that is loaded and reduced where their logs lie, here or on a Dask cluster.

A deployment's recording may be large and what is asked of it small, so a recording is read, asked and dropped in one
worker, and only the answers travel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from infer_diag.errors import DiagError, SourceError, UnknownNameError
from infer_diag.loaders import load
from infer_diag.recording import Recording
from infer_diag.redact import redact

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
Progress = Callable[[int, int, str], None]

MOST_REASON = 300
SMALL_BYTES = 4 << 20
"""Logs of a fleet up to this size are read here: processes would take longer to start."""
RETRIES = 2
"""How often a cluster may begin a deployment again after its worker died."""


@dataclass(frozen=True)
class Facts:
    """What logs do not tell of a deployment: what it runs on, and what that costs. Null is unknown.

    `gpu_count` is of one replica. `held_gpu_h` is what was billed for the time of the logs. `evidence` says where the
    facts stand.
    """

    model: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    precision: str | None = None
    price_per_gpu_h: float | None = None
    held_gpu_h: float | None = None
    evidence: str | None = None

    def over(self, other: Facts) -> Facts:
        """These facts, and those of `other` where these are unknown."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **known)


@dataclass(frozen=True)
class Deployment:
    """One deployment: its name, its log files, and what is known besides; or a recording that is there already.

    `year` and `tz` are those of stamps that print none.
    """

    name: str
    paths: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts)
    recording: Recording | None = None
    year: int | None = None
    tz: str | None = None

    def load(self) -> Recording:
        """Its recording.

        Raises:
            SourceError: nothing of it can be read.
        """
        return self.recording if self.recording is not None else load(*self.paths, year=self.year, tz=self.tz)


@dataclass(frozen=True)
class Broken:
    """A deployment that gave no answer, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What the deployments answered, by name in the fleet's order, and those that gave no answer."""

    found: dict[str, T]
    broken: tuple[Broken, ...]


@dataclass(frozen=True)
class Fleet:
    """Deployments side by side. `client`: a Dask client whose workers see the same paths; without one, processes here.

    `workers`: processes at most; 1 asks one deployment after another here, as is done where the logs are small.
    """

    deployments: tuple[Deployment, ...]
    client: Client | None = None
    workers: int | None = None

    def __len__(self) -> int:
        return len(self.deployments)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> Recording:
        """The recording of one deployment, loaded here.

        Raises:
            UnknownNameError: no deployment has this name.
            SourceError: nothing of it can be read.
        """
        return self.deployment(name).load()

    def __repr__(self) -> str:
        shown = ", ".join(self.names()[:4]) + (", …" if len(self) > 4 else "")
        return f"Fleet({len(self)} deployments: {shown})"

    def names(self) -> list[str]:
        """The names in order."""
        return [each.name for each in self.deployments]

    def deployment(self, name: str) -> Deployment:
        """One deployment without its recording.

        Raises:
            UnknownNameError: no deployment has this name.
        """
        found = {each.name: each for each in self.deployments}
        if name not in found:
            raise UnknownNameError("deployment", name, found)
        return found[name]

    def only(self, names: Sequence[str]) -> Fleet:
        """The fleet of these deployments, in the given order."""
        return replace(self, deployments=tuple(self.deployment(name) for name in names))

    def map(self, function: Callable[[Recording, Facts], T], progress: Progress | None = None) -> Answers[T]:
        """What `function(recording, facts)` says of each deployment; it has to be importable where the workers run.

        A deployment that cannot be read or asked stands in `broken` with the reason, and the others go on. A worker
        that dies costs the time of what it had begun; a deployment that kills its worker again is broken.
        `progress(done, all, name)` is called as answers come in.
        """
        told = _Told(len(self), progress)
        if self.client is not None:
            outcomes = _on_cluster(self.client, self.deployments, function, told)
        elif self._is_small():
            outcomes = {each.name: told(each.name, _asked(each, function)) for each in self.deployments}
        else:
            outcomes = _in_processes(self.deployments, function, told, self.workers or os.cpu_count() or 1)
        found = {name: outcomes[name][0] for name in self.names() if outcomes[name][1] is None}
        broken = tuple(Broken(name, str(outcomes[name][1])) for name in self.names() if outcomes[name][1] is not None)
        return Answers(found, broken)

    def _is_small(self) -> bool:
        """Whether processes would not pay: one deployment, recordings that are there already, or small logs."""
        if self.workers == 1 or len(self) < 2 or all(each.recording is not None for each in self.deployments):
            return True
        if self.workers is not None or any("://" in path for each in self.deployments for path in each.paths):
            return False
        return sum(_size(Path(path)) for each in self.deployments for path in each.paths) <= SMALL_BYTES


Outcome = tuple[Any, str | None]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


@dataclass
class _Told:
    """Counts what is done and tells it."""

    size: int
    progress: Progress | None
    done: int = 0

    def __call__(self, name: str, outcome: Outcome) -> Outcome:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.size, name)
        return outcome


def fleet_of(recordings: Mapping[str, Recording], facts: Mapping[str, Facts] | None = None) -> Fleet:
    """A fleet of recordings that are loaded already."""
    known = facts or {}
    made = (Deployment(name, facts=known.get(name, Facts()), recording=each) for name, each in recordings.items())
    return Fleet(tuple(made))


def _asked(deployment: Deployment, function: Callable[[Recording, Facts], Any]) -> Outcome:
    """(answer, None) or (None, why there is none); nothing that goes wrong in a worker reaches the others."""
    try:
        return function(deployment.load(), deployment.facts), None
    except DiagError as error:
        return None, _plain(str(error))
    except Exception as error:  # one deployment's damage, whatever it is, must not end the fleet's analysis
        return None, _plain(f"{type(error).__name__}: {error}")


def _plain(reason: str) -> str:
    return redact(" ".join(reason.split()))[:MOST_REASON]


def _in_processes(
    deployments: Sequence[Deployment], function: Callable[[Recording, Facts], Any], told: _Told, workers: int
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    try:
        with _pool(min(workers, len(deployments))) as pool:
            waiting = {pool.submit(_asked, each, function): each.name for each in deployments}
            for future in as_completed(waiting):
                outcomes[waiting[future]] = told(waiting[future], future.result())
    except BrokenProcessPool:
        # The pool does not say which deployment killed its worker, so those without an answer get one worker each.
        for each in deployments:
            if each.name not in outcomes:
                outcomes[each.name] = told(each.name, _by_itself(each, function))
    return outcomes


def _by_itself(deployment: Deployment, function: Callable[[Recording, Facts], Any]) -> Outcome:
    try:
        with _pool(1) as pool:
            return pool.submit(_asked, deployment, function).result()
    except BrokenProcessPool:
        return None, "the process that read it died (out of memory?)"


def _pool(workers: int) -> Executor:
    # A forked child would inherit the locks of polars' threads.
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _on_cluster(
    client: Client, deployments: Sequence[Deployment], function: Callable[[Recording, Facts], Any], told: _Told
) -> dict[str, Outcome]:
    try:
        from distributed import as_completed as as_finished
    except ImportError as error:
        raise DiagError("a Dask client needs the package distributed", hint="pip install infer-diag[fleet]") from error
    waiting = {client.submit(_asked, each, function, pure=False, retries=RETRIES): each.name for each in deployments}
    outcomes: dict[str, Outcome] = {}
    for future in as_finished(list(waiting)):
        name = waiting[future]
        try:
            outcome = future.result()
        except Exception as error:  # the cluster's own errors share no base class
            outcome = (None, _plain(f"the cluster gave it up: {type(error).__name__}"))
        outcomes[name] = told(name, outcome)
    return outcomes


def connected(address: str) -> Client:
    """A client of the Dask scheduler at an address.

    Raises:
        DiagError: distributed is not installed, or no scheduler answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise DiagError("a Dask cluster needs the package distributed", hint="pip install infer-diag[fleet]") from error
    try:
        return Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise DiagError(f"no Dask scheduler answers at {address[:80]}", hint="check the address") from error


def check_names(names: Sequence[str]) -> None:
    """Every deployment has a name of its own.

    Raises:
        SourceError: there is none, or two share a name.
    """
    if not names:
        raise SourceError("the paths name no deployment", hint="give a folder that holds a folder per deployment")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(f"two deployments are called {twice[0]!r}", hint="deployments are named after their folders")
