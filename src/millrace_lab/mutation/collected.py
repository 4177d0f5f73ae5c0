"""Runs tests in forks of a process that has collected all of them, with one function changed.

To import the package and to collect the tests takes longer than most tests that find a fault out.
So one process does both, once. For each fault it forks, and the fork gives the function that has
the fault its changed code before it runs the tests.

That is the same as a module with the fault only if the function has not run before the fork. Faults
at the top of a module, in default arguments, in kernels, and in functions that run while modules
are imported are left to `running`, which imports a module with the fault.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from millrace_lab.mutation import running

Place = tuple[str, str, int]
"""A function's file, qualified name and first line: the functions of a property share a name."""


class Collected:
    """A plugin of pytest that hands over the collected tests in place of running them."""

    def __init__(self, package: Path, serve: Callable[[Collected], None]) -> None:
        self._package = str(package.resolve()) + "/"
        self._serve = serve
        self._ran: set[Place] = set()
        self._functions: dict[Place, list[FunctionType]] = {}
        self._session: Any = None
        self._items: dict[str, pytest.Item] = {}

    def run(self, root: Path, work: Path, files: Sequence[str]) -> int:
        """Collect the tests of some files, and serve them."""

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(self._package):
                self._ran.add(_place(frame.f_code))

        sys.setprofile(note)
        return running.pytest_in(root, work, files, [self], ("-s",))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.setprofile(None)
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                place = _place(found.__code__)
                if place[0].startswith(self._package):
                    self._functions.setdefault(place, []).append(found)
        # The garbage collector of a fork would otherwise touch, and so copy, all of it.
        gc.freeze()
        self._serve(self)
        return True

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\nFAILED {report.nodeid}\n{report.longreprtext}", flush=True)

    def change(
        self, path: Path, function: str, source: str, mutated: str
    ) -> dict[FunctionType, CodeType] | None:
        """Functions and the code that a fork gives them to have a fault; None if it needs more."""
        if source == mutated:
            return {}
        outermost = function.partition(".<locals>")[0]
        before, after = _codes(source, path), _codes(mutated, path)
        changed = [
            place
            for place, code in before.items()
            if place[1] == outermost and place in after and after[place] != code
        ]
        if len(changed) != 1 or changed[0] in self._ran:
            return None
        (place,) = changed
        functions = self._functions.get(place, [])
        if not functions or before[place].co_freevars != after[place].co_freevars:
            return None
        return dict.fromkeys(functions, after[place])

    def run_tests(self, tests: Sequence[str]) -> int:
        """Run some of the tests, in this order, until one fails."""
        from _pytest.main import pytest_runtestloop

        session = self._session
        session.items = [self._items[test] for test in tests]
        # The one that the tests' start had made is shared by all forks.
        os.environ["MILLRACE_CACHE_DIR"] = tempfile.mkdtemp()
        try:
            pytest_runtestloop(session)
        except (session.Failed, session.Interrupted):
            return 1
        return int(session.testsfailed > 0)


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(source: str, path: Path) -> dict[Place, CodeType]:
    module = compile(source, str(path), "exec", dont_inherit=True)
    return {_place(code): code for code in _nested(module)}


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)
