"""The check: a seeded sample of the core's mutants, each against the tests that reach it.

Results are kept as they come, by the text of the mutant's module, so a check that was interrupted
goes on where it was, and one after a change of the tests runs only what was not found out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from millrace_lab.mutation import reach, running
from millrace_lab.mutation.collected import Collected
from millrace_lab.mutation.mutants import Mutant, compiles, mutants

PACKAGES = ("epoch", "log", "state", "operators")
KINDS = ("unit", "property")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

KILLED, TIMEOUT, SURVIVED, UNREACHED, EQUAL, REFUSED = (
    "killed",
    "timeout",
    "survived",
    "no test reaches it",
    "equivalent",
    "refused",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Tree:
    """A package, its tests, and a folder for what is found out about them."""

    root: Path
    work: Path
    package: Path
    name: str = "millrace"

    def sources(self, packages: Sequence[str]) -> dict[str, str]:
        """Module -> text."""
        found = {}
        for package in packages:
            for path in sorted((self.package / package).rglob("*.py")):
                found[path.relative_to(self.package).as_posix()] = path.read_text()
        return found

    def test_files(self, packages: Sequence[str]) -> list[str]:
        """The unit tests, then the property tests, of some packages."""
        folders = [self.root / "tests" / kind / package for kind in KINDS for package in packages]
        files = [path for folder in folders for path in sorted(folder.rglob("test_*.py"))]
        return [path.relative_to(self.root).as_posix() for path in files]

    def dotted(self, module: str) -> str:
        stem = module.removesuffix(".py").removesuffix("/__init__")
        return ".".join([self.name, *stem.split("/")])


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    id: str
    outcome: str
    seconds: float = 0.0
    tests: int = 0
    killed_by: str = ""
    reason: str = ""
    against: str = ""
    """The text of all tests. What was found out stays so when tests are added; what was not is
    tried again."""


@dataclass(frozen=True)
class Case:
    """A mutant with what is needed to run it."""

    mutant: Mutant
    source: str
    id: str
    tests: list[reach.Called]
    affected: frozenset[str]
    """Modules whose kernels the fault is compiled into."""


def sample(tree: Tree, packages: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Mutants of each package in proportion to what it has, but no fewer than a tenth of all."""
    sources = tree.sources(packages)
    of_package: dict[str, list[Mutant]] = {package: [] for package in packages}
    for module, source in sources.items():
        of_package[module.partition("/")[0]] += mutants(module, source)
    chance = random.Random(seed)
    drawn: list[Mutant] = []
    # The smallest first: what it gets beyond its share, the others do not get.
    by_size = sorted(packages, key=lambda package: len(of_package[package]))
    for place, package in enumerate(by_size):
        found = of_package[package]
        rest = sum(len(of_package[other]) for other in by_size[place:])
        left = number - len(drawn)
        share = max(round(left * len(found) / max(rest, 1)), min(left, number // 10))
        chance.shuffle(found)
        drawn += itertools.islice((m for m in found if compiles(m, sources[m.module])), share)
    return sorted(drawn, key=lambda m: (m.module, m.start, m.end, m.replacement))


def recorded(tree: Tree, packages: Sequence[str]) -> list[reach.Called]:
    """What each test calls. Files of tests whose calls are not known for this package run once."""
    package = reach.fingerprint([tree.package])
    known = {path: _record_of(tree, package, path) for path in tree.test_files(packages)}
    missing = [path for path, record in known.items() if not record.exists()]
    if missing:
        lines = tree.work / "reach.jsonl"
        lines.unlink(missing_ok=True)
        recorder = reach.Recorder(tree.package, lines)

        def run() -> int:
            running.use_kernels(tree.work / "kernels")
            return running.pytest_in(tree.root, tree.work, missing, [recorder])

        log = tree.work / "reach.log"
        code = running.fork(run, log, 24 * 3600).wait()
        if code != 0:
            raise RuntimeError(f"the tests fail without any fault ({code}): see {log}")
        reach.split(lines, {path: known[path] for path in missing})
    return [called for record in known.values() for called in reach.read(record)]


def _record_of(tree: Tree, package: str, path: str) -> Path:
    text = hashlib.sha256(f"{package}{path}".encode() + (tree.root / path).read_bytes())
    return tree.work / "reach" / f"{text.hexdigest()[:16]}.jsonl"


def equivalents() -> dict[tuple[str, str, str, str], str]:
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(m["module"], m["function"], m["before"], m["after"]): m["reason"] for m in listed}


def stale(tree: Tree) -> list[tuple[str, str, str, str]]:
    """What is listed as equivalent and is no mutant any more."""
    sources = tree.sources(["."])
    there = {
        (module, mutant.function, *mutant.changed(sources[module]))
        for module in {listed[0] for listed in equivalents()} & sources.keys()
        for mutant in mutants(module, sources[module])
    }
    return [listed for listed in equivalents() if listed not in there]


def check(
    tree: Tree,
    packages: Sequence[str],
    chosen: Sequence[Mutant],
    processes: int,
    told: Callable[[Mutant, Result], None],
    controls: int = 0,
) -> dict[Mutant, Result]:
    """Run every mutant that has no result yet, and as controls some places without a fault.

    A control that a test fails shows that the way tests are run is at fault, and not a mutant.
    """
    tree.work.mkdir(parents=True, exist_ok=True)
    known = _known(tree.work / "results.jsonl")
    called = recorded(tree, packages)
    sources = tree.sources(["."])
    equal = equivalents()
    found: dict[Mutant, Result] = {}
    waiting: list[Case] = []
    tests_text = reach.fingerprint([tree.root / "tests"])
    picked = random.Random(len(chosen)).sample(list(chosen), min(controls, len(chosen)))
    unchanged = [mutant.without_fault(sources[mutant.module]) for mutant in picked]
    for mutant in [*chosen, *unchanged]:
        source = sources[mutant.module]
        id_ = mutant.id(source)
        reason = equal.get((mutant.module, mutant.function, *mutant.changed(source)))
        if reason is not None:
            found[mutant] = Result(id_, EQUAL, reason=reason)
        elif id_ in known and (
            known[id_].outcome in (KILLED, TIMEOUT) or known[id_].against == tests_text
        ):
            found[mutant] = known[id_]
        else:
            waiting.append(_case(tree, mutant, sources, called))
    refused: list[Case] = []
    with (tree.work / "results.jsonl").open("a") as file:
        for case, result in itertools.chain(
            _run_collected(tree, packages, waiting, processes),
            _run(refused, processes, lambda case: _start(tree, case)),
        ):
            if result.outcome == REFUSED:
                refused.append(case)
                continue
            found[case.mutant] = result = replace(result, against=tests_text)
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            if case.mutant not in unchanged:
                told(case.mutant, result)
            elif result.outcome not in (SURVIVED, UNREACHED):
                raise RuntimeError(f"{case.mutant.module} has no fault, but: {result}")
    return {mutant: found[mutant] for mutant in chosen}


def _case(
    tree: Tree, mutant: Mutant, sources: dict[str, str], called: Sequence[reach.Called]
) -> Case:
    source = sources[mutant.module]
    callers = reach.importers(mutant.module, sources, tree.name)
    compiled = bool(reach.kernels(source)) and (
        not mutant.function or reach.in_kernel(mutant.function, source)
    )
    tests = reach.tests_of(mutant.module, mutant.function, source, callers, called)
    affected = frozenset({mutant.module, *callers} if compiled else ())
    return Case(mutant, source, mutant.id(source), tests, affected)


def _known(path: Path) -> dict[str, Result]:
    if not path.exists():
        return {}
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.id: result for result in results}


def _run_collected(
    tree: Tree, packages: Sequence[str], cases: list[Case], processes: int
) -> Iterator[tuple[Case, Result]]:
    """Run what a process with all tests collected can run; the others are refused."""
    if not cases:
        return
    by_id = {case.id: case for case in cases}
    reading, writing = os.pipe()

    def serve(collected: Collected) -> None:
        with os.fdopen(writing, "w") as results:
            for _, result in _run(cases, processes, lambda c: _start_collected(tree, c, collected)):
                results.write(json.dumps(asdict(result)) + "\n")
                results.flush()

    def run() -> int:
        os.close(reading)
        running.use_kernels(tree.work / "kernels")
        collected = Collected(tree.package, serve)
        return collected.run(tree.root, tree.work, tree.test_files(packages))

    server = running.fork(run, tree.work / "collected.log", 24 * 3600)
    os.close(writing)
    with os.fdopen(reading) as results:
        for line in results:
            result = Result(**json.loads(line))
            yield by_id[result.id], result
    code = server.wait()
    if code != 0:
        raise RuntimeError(f"the tests cannot be collected ({code}): see {server.log}")


def _run(
    cases: list[Case], processes: int, start: Callable[[Case], running.Fork | None]
) -> Iterator[tuple[Case, Result]]:
    under_way: list[tuple[Case, running.Fork, float]] = []
    waiting = deque(cases)
    while waiting or under_way:
        while waiting and len(under_way) < processes:
            case = waiting.popleft()
            if not case.tests:
                yield case, Result(case.id, UNREACHED)
                continue
            fork = start(case)
            if fork is None:
                yield case, Result(case.id, REFUSED)
            else:
                under_way.append((case, fork, time.monotonic()))
        for entry in list(under_way):
            case, fork, began = entry
            code = fork.poll()
            if code is not None:
                under_way.remove(entry)
                yield case, _result(case, fork, code, time.monotonic() - began)
        time.sleep(0.02)


def _log(tree: Tree, case: Case) -> Path:
    return tree.work / f"{case.id}.log"


def _seconds(case: Case) -> float:
    return running.SECONDS + 5 * sum(test.seconds for test in case.tests)


def _start_collected(tree: Tree, case: Case, collected: Collected) -> running.Fork | None:
    mutant = case.mutant
    if case.affected or not mutant.function:
        return None
    path = tree.package / mutant.module
    change = collected.change(path, mutant.function, case.source, mutant.applied(case.source))
    if change is None:
        return None

    def run() -> int:
        for function, code in change.items():
            function.__code__ = code
        return collected.run_tests([test.test for test in case.tests])

    return running.fork(run, _log(tree, case), _seconds(case))


def _start(tree: Tree, case: Case) -> running.Fork:
    fault = running.Fault(
        tree.dotted(case.mutant.module),
        tree.package / case.mutant.module,
        case.mutant.applied(case.source),
    )

    def run() -> int:
        cache = tree.work / "kernels"
        if case.affected:
            own = Path(tempfile.gettempdir()) / "kernels"
            running.kernel_cache(cache, own, set(case.affected))
            cache = own
        running.use_kernels(cache)
        sys.meta_path.insert(0, fault)
        return running.pytest_in(tree.root, tree.work, [test.test for test in case.tests])

    return running.fork(run, _log(tree, case), _seconds(case))


def _result(case: Case, fork: running.Fork, code: int, seconds: float) -> Result:
    result = Result(case.id, SURVIVED, round(seconds, 2), len(case.tests))
    if fork.timed_out:
        return replace(result, outcome=TIMEOUT)
    if code == 0:
        fork.log.unlink()
        return result
    match = _FAILED.search(fork.log.read_text(errors="replace"))
    if match is None and code > 0:
        raise RuntimeError(f"pytest ended with {code}, but no test failed: see {fork.log}")
    fork.log.unlink()
    return replace(result, outcome=KILLED, killed_by=match[1] if match else f"signal {-code}")


def summary(results: dict[Mutant, Result]) -> dict[str, Any]:
    """Counts, by package and module too; a score leaves out what is equivalent."""
    modules: dict[str, Counter[str]] = {}
    packages: dict[str, Counter[str]] = {}
    for mutant, result in results.items():
        modules.setdefault(mutant.module, Counter())[result.outcome] += 1
        packages.setdefault(mutant.module.partition("/")[0], Counter())[result.outcome] += 1
    total = sum(packages.values(), Counter())
    return {
        "mutants": total.total(),
        "score": _score(total),
        "outcomes": dict(total),
        "packages": {
            package: {"score": _score(counts), **counts} for package, counts in packages.items()
        },
        "modules": {module: dict(counts) for module, counts in sorted(modules.items())},
    }


def _score(counts: Counter[str]) -> float:
    counted = counts.total() - counts[EQUAL]
    return round((counts[KILLED] + counts[TIMEOUT]) / counted, 4) if counted else 1.0
