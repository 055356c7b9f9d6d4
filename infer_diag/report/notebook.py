"""A report as an executed notebook: the shipped template with the logs of one diagnosis as its parameters.

Whoever has the logs runs it again; `pytest --nbval` then says whether they still give what the notebook shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from infer_diag.diagnose.cost import FleetDiagnosis
from infer_diag.errors import DiagError, SourceError
from infer_diag.redact import plain, redact

if TYPE_CHECKING:
    from infer_diag.diagnose import Diagnosis

_PACKAGE = Path(__file__).parents[1]
_NAME = "report.ipynb"
_OPTIONS = ("format", "year", "tz", "strict")
_FACTS = ("price_per_gpu_h", "gpu_count", "held_gpu_h")
_FOUND = "findings: "
_LONG = 300


def template() -> Path:
    """The notebook that reports are made from, of the wheel or of the checkout that the package runs from.

    Raises:
        SourceError: this installation has none.
    """
    for folder in (_PACKAGE / "_notebooks", _PACKAGE.parent / "notebooks"):
        if (folder / _NAME).is_file():
            return folder / _NAME
    raise SourceError(f"this installation carries no {_NAME}", hint="install the wheel, or run from a checkout")


def write_notebook(
    diagnosis: Diagnosis | FleetDiagnosis, target: Path, load_options: Mapping[str, Any] | None = None
) -> None:
    """Runs the template on the logs of a diagnosis and writes the notebook; nothing is written where it fails.

    Args:
        diagnosis: of one recording.
        target: the notebook; logs in its folder or below are named relative to it, so that both move together.
        load_options: what `load` was given, `paths` among it; by default the files of the recording and no option.

    Raises:
        DiagError: it cannot be made: of a fleet, of logs whose address holds a secret, of a recording that reading its
            files again does not give, or without papermill.
        SourceError: the file cannot be written.
    """
    if isinstance(diagnosis, FleetDiagnosis):
        raise DiagError(
            "a fleet has no notebook report", hint="write it as .html or .md, or open notebooks/01_cost_attribution"
        )
    if not target.parent.is_dir():
        raise SourceError(f"{target} cannot be written: no such folder", hint="name a file in a folder that exists")
    values = _parameters(diagnosis, target.parent, load_options or {})
    with TemporaryDirectory(prefix="infer_diag_report_") as folder:
        made = _executed(Path(folder) / _NAME, values, target.parent)
        _check(made, diagnosis)
        text = _written(made)
    try:
        target.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise SourceError(f"{target} cannot be written: {error.strerror}", hint="name a file elsewhere") from error


def _parameters(diagnosis: Diagnosis, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    unknown = {name for name, value in given.items() if value is not None} - {"paths", *_OPTIONS}
    if unknown:
        raise DiagError(
            f"a notebook cannot read the logs again with {', '.join(sorted(unknown))}",
            hint="keep what the server or the table says as a file, and report on that",
        )
    paths = list(given.get("paths") or _files(diagnosis))
    if not paths:
        raise DiagError("the recording comes from no file, so no notebook can read it again", hint="write .html or .md")
    source = "\n".join(_placed(str(path), folder) for path in paths)
    if redact(source) != source:
        raise DiagError(
            f"the logs' place holds a secret, which a notebook would hand on: {redact(source)}",
            hint="copy the logs to a file, and report on that",
        )
    known = {"log_format": given.get("format"), "year": given.get("year"), "tz": given.get("tz")}
    known |= {"strict": given.get("strict") or None}
    known |= {name: getattr(diagnosis.facts, name) for name in _FACTS}
    return {"source": source} | {name: value for name, value in known.items() if value is not None}


def _files(diagnosis: Diagnosis) -> Iterator[str]:
    for source in diagnosis.recording.sources:
        yield from [path for path, _, _ in source.parts] or [source.path]


def _placed(path: str, folder: Path) -> str:
    """A path as the notebook finds it from its own folder; names of samples and addresses stay."""
    if path.startswith("sample:") or "://" in path:
        return path
    whole, base = Path(path).expanduser().absolute(), folder.absolute()
    return str(whole.relative_to(base) if whole.is_relative_to(base) else whole)


def _executed(path: Path, values: Mapping[str, Any], folder: Path) -> Any:
    try:
        import nbformat
        import papermill
        from papermill.exceptions import PapermillExecutionError
    except ModuleNotFoundError as error:
        raise DiagError(
            f"a notebook needs {error.name}, which is not installed", hint="pip install 'infer-diag[lab]' brings it"
        ) from error
    options = {"cwd": str(folder), "kernel_name": "python3", "progress_bar": False}
    try:
        papermill.execute_notebook(str(template()), str(path), parameters=dict(values), **options)
    except PapermillExecutionError as error:
        told = plain(f"{error.ename}: {error.evalue}", _LONG)
        raise DiagError(
            f"the notebook stopped in its cell {error.exec_count}: {told}", hint="write .html or .md"
        ) from None
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def _check(notebook: Any, diagnosis: Diagnosis) -> None:
    """Options that are not known here, or rows changed since, would make a notebook that tells something else."""
    told = [line for line in _printed(notebook.cells) if line.startswith(_FOUND)]
    here = found_line([f"{each.severity} {each.id}" for each in diagnosis.findings])
    if told != [here]:
        raise DiagError(
            "reading the logs again gives other findings than this diagnosis has",
            hint="say how they were loaded: report(d, 'r.ipynb', load_options={'paths': [...], 'tz': ...})",
        )


def found_line(findings: Sequence[str]) -> str:
    """The line by which the notebook says which findings it has."""
    return _FOUND + (", ".join(findings) or "none")


def _printed(cells: Sequence[Any]) -> Iterator[str]:
    for cell in cells:
        for output in cell.get("outputs", ()):
            yield from str(output.get("text", "")).splitlines()


def _written(notebook: Any) -> str:
    """The notebook's text without what differs from run to run: clocks, places of this machine, ids by chance."""
    import nbformat

    notebook.metadata.pop("papermill", None)
    for number, cell in enumerate(notebook.cells):
        cell.id = str(number)
        cell.metadata.pop("execution", None)
        cell.metadata.pop("papermill", None)
        for empty in [name for name in ("tags",) if not cell.metadata.get(name)]:
            cell.metadata.pop(empty, None)
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return text + "\n"
