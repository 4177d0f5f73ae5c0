"""Pages name modules that exist. The architecture lists packages in the order of the linter, and
shows a path of calls that goes down through them."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest
from tests.conftest import ROOT

import millrace

SOURCE = ROOT / "src" / "millrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOT_MODULES = {"commands", "index", "json", "operator", "parallelism", "states", "view"}
"""What follows `millrace.` in names of files, metadata, options and entry points."""


def contract() -> list[set[str]]:
    """The layers of the import-linter contract, from the bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [c["layers"] for c in settings["contracts"] if c["type"] == "layers"]
    return [set(re.findall(r"\w+", layer)) for layer in reversed(layers)]


def test_packages_are_listed_by_the_layers_of_the_contract() -> None:
    listed: dict[int, list[str]] = {}
    for number, package in re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", PAGE, re.MULTILINE):
        listed.setdefault(int(number), []).append(package)
    assert list(listed) == list(range(1, len(listed) + 1))
    assert all(packages == sorted(packages) for packages in listed.values())
    assert [set(packages) for packages in listed.values()] == contract()


def test_every_module_on_the_page_exists() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE)
    assert len(named) >= 20
    assert [path for path in named if not (SOURCE / path).is_file()] == []


def path_of(what: str) -> list[list[str]]:
    """The rows of a path's table: step, perhaps by which step it is called, module."""
    section = PAGE.partition(f"## The path of a {what}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (\w+) \| (?:(\w+) \| )?`(\S+\.py)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("what", ["row", "rescale"])
def test_a_path_visits_a_module_once(what: str) -> None:
    visited = [module for _, _, module in path_of(what)]
    assert len(visited) >= 8
    assert len(set(visited)) == len(visited)


@functools.cache
def imported_by(module: str) -> set[str]:
    """The modules of the package that one of them imports."""
    tree = ast.parse((SOURCE / module).read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names = {str(n.module) for n in imports}
    names |= {f"{n.module}.{part.name}" for n in imports for part in n.names}
    paths = [name.removeprefix("millrace.").replace(".", "/") for name in names]
    files = {file for path in paths for file in (f"{path}.py", f"{path}/__init__.py")}
    return {file for file in files if (SOURCE / file).is_file()}


def known_to(module: str) -> set[str]:
    """A module of the package, and all that it imports, however indirectly."""
    found, waiting = {module}, {module}
    while waiting:
        waiting = set().union(*map(imported_by, waiting)) - found
        found |= waiting
    return found


def test_calls_on_the_path_of_a_row_stay_in_a_layer_or_go_down() -> None:
    layer = {package: n for n, packages in enumerate(contract()) for package in packages}
    modules: dict[str, str] = {}
    for step, caller, module in path_of("row"):
        package = module.partition("/")[0]
        if caller == "Spark":
            assert package == "spark", step
        else:
            # What calls a step comes before it, and the step does not know it.
            assert layer[package] <= layer[modules[caller].partition("/")[0]], step
            assert modules[caller] not in known_to(module), step
        modules[step] = module
    assert known_to("spark/epoch.py") >= {modules["plan"], modules["commit"], modules["manifest"]}


def test_every_family_of_operators_is_listed() -> None:
    (listed,) = re.findall(r"^\| \d+ \| `operators` \| (.+) \|$", PAGE, re.MULTILINE)
    families = [path.parent.name for path in (SOURCE / "operators").glob("*/__init__.py")]
    assert re.findall(r"`(\w+)`", listed) == sorted(families)


def exists(module: str) -> bool:
    path = SOURCE.parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def is_attribute(name: str) -> bool:
    """Whether a name is one of the package, or looks like a function of a module that exists."""
    module, _, attribute = name.rpartition(".")
    return attribute in millrace.__all__ if module == "millrace" else exists(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_and_files_on_every_page_exist(page: Path) -> None:
    text = page.read_text()
    modules = [
        name
        for name in re.findall(r"(?<![\w.])(millrace(?:_lab)?(?:\.[a-z_]+)+)\b", text)
        if name.split(".")[1] not in NOT_MODULES
    ]
    unknown = [name for name in modules if not exists(name) and not is_attribute(name)]
    files = re.findall(r"`((?:src|tests|docs|examples|scripts)/[\w/.-]+)`", text)
    unknown += [path for path in files if not (ROOT / path).exists()]
    assert unknown == []
