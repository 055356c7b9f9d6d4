"""The rules of the house that a machine can hold."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import dataframely as dy
import pytest
import yaml

import infer_diag
from infer_diag import results, schema, units

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "infer_diag"
MODULES = sorted(PACKAGE.rglob("*.py"))
COUNTED_BY_NAME = {"line", "last_line", "ready_line", "failed_line"}
STATISTICS = {"first", "last", "min", "mean", "max", "p50", "p95"}  # their unit stands in the row's `measure`


def frames_of(module: ModuleType) -> Iterator[type[dy.Schema]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, dy.Schema) and value.__module__.startswith(module.__name__):
            yield value


def numeric_columns(frame: type[dy.Schema]) -> set[str]:
    return {name for name, column in frame.columns().items() if column.dtype.is_numeric()}


def without_unit(frame: type[dy.Schema]) -> set[str]:
    allowed = COUNTED_BY_NAME | (STATISTICS if "measure" in frame.column_names() else set())
    return {name for name in numeric_columns(frame) - allowed if not name.endswith(tuple(units.SUFFIXES))}


def calls_of(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def imports_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_every_numeric_column_names_its_unit() -> None:
    frames = [*frames_of(schema), *frames_of(results)]
    assert len(frames) > len(schema.FRAMES)
    faults = {frame.__name__: names for frame in frames if (names := without_unit(frame))}
    assert not faults


def test_a_column_without_unit_is_seen() -> None:
    class Wrong(dy.Schema):
        duration = dy.Float64()
        size_bytes = dy.UInt64()
        line = dy.UInt32()

    assert without_unit(Wrong) == {"duration"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    long = {
        node.name: lines
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > 40
    }
    assert not long


def test_no_module_is_called_utils() -> None:
    assert not [path for path in MODULES if re.search(r"utils?|helpers?|misc|common", path.stem)]


def test_quantiles_are_taken_in_one_place() -> None:
    """polars' default is the nearest value, not the linear one; one helper keeps every figure on one definition."""
    callers = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if any(calls_of(ast.parse(path.read_text(encoding="utf-8")), "quantile"))
    }
    assert callers <= {"attribution/quantiles.py"}


@pytest.mark.parametrize(
    ("floor", "refused"),
    [
        ("attribution", {"plotly", "IPython", "rich", "typer"}),
        ("loaders", {"plotly", "IPython", "rich", "typer"}),
        ("diagnose", {"IPython", "typer"}),
        ("charts", {"IPython", "typer"}),
    ],
)
def test_a_floor_leaves_the_faces_to_others(floor: str, refused: set[str]) -> None:
    paths = sorted((PACKAGE / floor).rglob("*.py"))
    assert paths
    used = {name.split(".")[0] for path in paths for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))}
    assert not used & refused


def test_charts_do_not_aggregate() -> None:
    paths = sorted((PACKAGE / "charts").rglob("*.py"))
    assert paths
    texts = [path.read_text(encoding="utf-8") for path in paths]
    assert not [
        name for text in texts for name in ("group_by", "group_by_dynamic") if any(calls_of(ast.parse(text), name))
    ]


def test_floors() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


HEAVY = ("plotly", "IPython", "cupy", "pynvml", "rich", "typer", "jinja2")


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after `code`."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(shown.stdout.splitlines()[-1].split())


def imported_by(code: str) -> set[str]:
    """Their top-level names."""
    return {name.split(".")[0] for name in modules_after(code)}


def test_the_package_imports_lightly() -> None:
    loaded = imported_by("import infer_diag\ninfer_diag.load, infer_diag.Recording, infer_diag.DiagError")
    assert "polars" in loaded
    assert not loaded & set(HEAVY)
    assert "polars" not in imported_by("import infer_diag")


def test_a_diagnosis_needs_no_face() -> None:
    loaded = imported_by("import infer_diag\ninfer_diag.diagnose, infer_diag.Diagnosis")
    assert not loaded & set(HEAVY)


def test_one_recording_is_diagnosed_without_the_statistics_of_fleets() -> None:
    sample = "sample:captured/sequence_limit/server.log"
    loaded = modules_after(f"import infer_diag\ninfer_diag.diagnose(infer_diag.load({sample!r})).to_json()")
    # They take two seconds to import, more than all the rest of a small log.
    assert "infer_diag.attribution.cost.ledger" in loaded
    assert not loaded & {"scipy.stats", "scipy.optimize"}


@pytest.mark.parametrize(
    "first",
    [
        "import infer_diag.diagnose, infer_diag.report",
        "from infer_diag.report import report",
        "infer_diag.report",
        "pass",
    ],
)
def test_the_functions_are_not_hidden_by_their_sub_packages(first: str) -> None:
    code = f"import infer_diag\n{first}\nassert infer_diag.diagnose.__name__ == 'diagnose'\n"
    code += "from infer_diag import diagnose, report\n"
    code += "assert type(diagnose) is type(report) is type(lambda: 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in infer_diag.__all__:
        assert getattr(infer_diag, name) is not None
        assert name in dir(infer_diag)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        infer_diag.laod  # noqa: B018


def test_public_modules_and_functions_say_what_they_return() -> None:
    silent = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))]
        for node in named:
            if not getattr(node, "name", "").startswith("_") and not ast.get_docstring(node):
                silent.append(f"{path.relative_to(PACKAGE)}:{getattr(node, 'name', '')}")
    assert not silent


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_nothing_names_the_machine_that_it_was_written_on() -> None:
    here = re.compile(
        r"(?<![\w./])(?:" + "|".join(["/wo" + "rk", "/ro" + "ot/.pyenv", "/op" + "t/pypi"]) + r")(?:/|\b)"
    )
    faults = {
        path.relative_to(ROOT).as_posix()
        for path in tracked()
        if path.is_file() and here.search(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert not faults


def requirements(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {line for line in listed if not line.startswith("infer-diag")}


def test_conda_gets_the_same_packages_as_pip() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = {line for line in listed if isinstance(line, str)}
    pip = {line for part in listed if isinstance(part, dict) for line in part["pip"]}
    assert requirements("lab", "test") <= conda | pip


def test_the_entry_point_leads_to_a_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["infer-diag"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
