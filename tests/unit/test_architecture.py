"""Pages name modules that exist; the architecture lists packages in the order of the linter."""

from __future__ import annotations

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


@pytest.mark.parametrize("path", ["row", "rescale"])
def test_a_path_visits_a_module_once(path: str) -> None:
    section = PAGE.partition(f"## The path of a {path}\n")[2].partition("\n## ")[0]
    visited = re.findall(r"^\| \w+ \| `(\S+\.py)` \|", section, re.MULTILINE)
    assert len(visited) >= 8
    assert len(set(visited)) == len(visited)


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
