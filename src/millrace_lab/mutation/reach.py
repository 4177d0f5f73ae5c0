"""Which test calls which function, found out by running the tests once under a profile.

Functions are named by the path of their module and their qualified name. Kernels are compiled and
call nothing that a profile sees: the tests of a kernel are those of the modules that import it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

KERNELS = {"kernel", "part", "inlined"}
LONGEST_SECONDS = 20.0
"""The tests of a mutant are cut off here, by the time they took under the profile."""


@dataclass(frozen=True)
class Called:
    """A test, and the functions it called: `log/journal.py:Journal.head`."""

    test: str
    seconds: float
    """CPU time, that of processes it started included: the same on a busy machine."""
    functions: frozenset[str]

    @property
    def modules(self) -> set[str]:
        return {name.partition(":")[0] for name in self.functions}


class Recorder:
    """A plugin of pytest that writes a line of JSON for each test."""

    def __init__(self, package: Path, to: Path) -> None:
        self._package = str(package.resolve()) + "/"
        self._to = to

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        seen: set[CodeType] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call":
                seen.add(frame.f_code)

        began = sum(os.times()[:4])
        threading.setprofile(note)
        sys.setprofile(note)
        yield
        sys.setprofile(None)
        threading.setprofile(None)
        names = {
            f"{code.co_filename.removeprefix(self._package)}:{code.co_qualname}"
            for code in list(seen)
            if code.co_filename.startswith(self._package)
        }
        seconds = sum(os.times()[:4]) - began
        line = {"test": item.nodeid, "seconds": seconds, "calls": sorted(names)}
        with self._to.open("a") as file:
            file.write(json.dumps(line) + "\n")


def split(lines: Path, to: Mapping[str, Path]) -> None:
    """Give each file of tests the lines of its own tests."""
    found: dict[str, list[str]] = {path: [] for path in to}
    for line in lines.read_text().splitlines():
        found[json.loads(line)["test"].partition("::")[0]].append(line)
    for path, record in to.items():
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("".join(f"{line}\n" for line in found[path]))


def read(path: Path) -> list[Called]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [Called(line["test"], line["seconds"], frozenset(line["calls"])) for line in lines]


def fingerprint(folders: Sequence[Path]) -> str:
    """Of all sources in some folders: what was recorded for one tree is not used for another."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def kernels(source: str) -> frozenset[str]:
    """The functions of a module that are compiled."""
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id in KERNELS for d in node.decorator_list)
    )


def in_kernel(function: str, source: str) -> bool:
    """Whether a function, or one that it is defined in, is compiled."""
    return not kernels(source).isdisjoint(function.split("."))


def importers(module: str, sources: dict[str, str], name: str = "millrace") -> set[str]:
    """The modules that import one, directly or through others of the same sources."""
    edges = {path: _imports(source, name) for path, source in sources.items()}
    found, last = set[str](), {module}
    while last:
        last = {path for path, imported in edges.items() if imported & last} - found - {module}
        found |= last
    return found


@functools.cache
def _imports(source: str, name: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{name}."):
            path = (node.module or "").removeprefix(f"{name}.").replace(".", "/")
            found |= {f"{path}.py", *(f"{path}/{alias.name}.py" for alias in node.names)}
    return found


def tests_of(
    module: str, function: str, source: str, callers: set[str], called: Sequence[Called]
) -> list[Called]:
    """The tests that reach a function, most likely to notice first: those of its module, of its
    folder, of its package, all others; of each the unit tests first, and the quickest of them."""
    if in_kernel(function, source):
        modules = {module, *callers}
        chosen = [test for test in called if test.modules & modules]
    elif function:
        chosen = [test for test in called if f"{module}:{function}" in test.functions]
    else:
        chosen = [test for test in called if module in test.modules]
    folder, _, name = module.removesuffix(".py").rpartition("/")
    package = folder.partition("/")[0]

    def closeness(test: Called) -> tuple[int, bool, float]:
        _, kind, path = test.test.partition("::")[0].split("/", 2)
        near = (f"{folder}/test_{name}.py", f"{folder}/", f"{package}/", "")
        distance = next(i for i, prefix in enumerate(near) if path.startswith(prefix))
        return (distance, kind == "property", test.seconds)

    found: list[Called] = []
    total = 0.0
    for test in sorted(chosen, key=closeness):
        total += test.seconds
        if found and total > LONGEST_SECONDS:
            break
        found.append(test)
    return found
