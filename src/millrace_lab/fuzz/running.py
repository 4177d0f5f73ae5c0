"""Running cases: in this process, or in one of their own that may crash, hang or run out of memory.

A case depends on seed, target and number alone, so a finding is repeated by naming them. Listeners
have one server for all cases of a process; `--case` starts one for that case.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from millrace_lab.fuzz import corpus as corpora
from millrace_lab.fuzz.cases import CASES
from millrace_lab.fuzz.corpus import Corpus
from millrace_lab.fuzz.listeners import LISTENERS
from millrace_lab.fuzz.reading import read_everything

HANGS_AFTER = 300.0
"""Seconds that a case may take: for hangs, not for slow machines."""
MEMORY = 4 << 30
"""Bytes that cases may map beyond what the process has before the first."""
CASES_PER_PROCESS = 2000
SQL_EVERY = 8
"""How often a case is also read by SQL, which takes as long as all else."""

TARGETS = (*sorted(CASES), *sorted(LISTENERS))

Run = Callable[[random.Random, int], list[str]]
"""Runs a case, which it draws, by its number; returns how its steps ended."""


@dataclass
class Found:
    """What came of some cases."""

    target: str
    seed: int
    cases: int = 0
    seconds: float = 0.0
    ends: Counter[str] = field(default_factory=Counter)
    """How often a step ended in which way: read, or the class of a refusal."""
    findings: list[dict[str, object]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {**self.__dict__, "ends": dict(self.ends)}


@contextmanager
def opened(target: str, work: Path) -> Iterator[Run]:
    """What cases of a target need: a location to be mutated, or a server."""
    if target in LISTENERS:
        with LISTENERS[target](work / "served") as ask:
            yield lambda rng, _: [ask(rng)]
    else:
        yield on_copies(target, corpora.make(work / "corpus"), work)


def on_copies(target: str, corpus: Corpus, work: Path) -> Run:
    """Cases that each mutate a copy of the corpus, and read it."""

    def run(rng: random.Random, case: int) -> list[str]:
        location = corpus.copy(work / f"case-{case}")
        try:
            effect = CASES[target](rng, location)
            by_sql = rng.randrange(SQL_EVERY) == 0
            return list(read_everything(target, location, corpus, effect, by_sql=by_sql))
        finally:
            shutil.rmtree(location, ignore_errors=True)

    return run


def run_case(target: str, seed: int, case: int, one: Run) -> list[str]:
    """One case; raises whatever must not happen."""
    return one(random.Random(f"{seed}/{target}/{case}"), case)


def run_here(target: str, seed: int, cases: int, one: Run) -> Found:
    """Some cases in this process; for tests, in which a crash shows anyway."""
    found = Found(target, seed)
    started = time.monotonic()
    for case in range(cases):
        _note(found, case, _outcome(target, seed, case, one))
    found.seconds = time.monotonic() - started
    return found


def _outcome(target: str, seed: int, case: int, one: Run) -> dict[str, object]:
    try:
        return {"ends": run_case(target, seed, case, one)}
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(f.filename).name}:{f.lineno}" for f in trace[-6:]]
        return {"problem": f"{type(error).__name__}: {str(error)[:500]}", "at": places}


def _note(found: Found, case: int, outcome: dict[str, object]) -> None:
    found.cases += 1
    ends = outcome.get("ends")
    if isinstance(ends, list):
        found.ends.update(ends)
    else:
        found.findings.append({"case": case, **outcome})


def serve_cases(target: str, seed: int, first: int) -> None:
    """Run cases one after the other in this process, and say how each ended on standard output."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as folder,
        opened(target, Path(folder)) as one,
    ):
        # Everything is loaded and compiled after it.
        _outcome(target, seed, first, one)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        taken = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, most))
        for case in range(first, first + CASES_PER_PROCESS):
            print(json.dumps({"begun": case}), flush=True)
            told = {"case": case, **_outcome(target, seed, case, one)}
            print(json.dumps(told), flush=True)


def run(target: str, seed: int, minutes: float) -> Iterator[Found]:
    """Cases in processes of their own until the time is over; yields what was found so far."""
    found = Found(target, seed)
    started = time.monotonic()
    case = 0
    while (left := started + 60 * minutes - time.monotonic()) > 0:
        for told in _told(target, seed, case, left):
            case = int(str(told.pop("case"))) + 1
            _note(found, case - 1, told)
            found.seconds = time.monotonic() - started
            yield found
            if found.seconds > 60 * minutes:
                break


def _told(target: str, seed: int, first: int, seconds: float) -> Iterator[dict[str, object]]:
    """What a process says of its cases; the case that ended it, too."""
    command = [sys.executable, "-m", "millrace_lab.fuzz", target, "--seed", str(seed)]
    process = subprocess.Popen(
        [*command, "--serve-from", str(first)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True)
    reader.start()
    begun: int | None = None
    timer = threading.Timer(HANGS_AFTER, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            timer.cancel()
            timer = threading.Timer(HANGS_AFTER, process.kill)
            timer.start()
            told = json.loads(line)
            if "begun" in told:
                begun = told["begun"]
            else:
                begun = None
                yield told
        code = process.wait()
        if code:
            reader.join(5)
            last = "".join(errors)[-1000:]
            problem = f"the process ended with {code} (-9: it hung): {last}"
            if begun is None:
                raise RuntimeError(problem)
            yield {"case": begun, "problem": problem}
    finally:
        timer.cancel()
        process.kill()
        process.wait()
