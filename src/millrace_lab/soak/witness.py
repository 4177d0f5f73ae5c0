"""A program beside the query of a soak that looks at its state all the time: `reading`, `client`.

    python -m millrace_lab.soak.reading FOLDER NAME CHOSEN

It begins rounds until FOLDER/witnesses/NAME.stop is there, and after each writes what it has found
to FOLDER/witnesses/NAME.json. A store that is out of reach is a reason to try again; a wrong answer
never is, nor an error that nobody planned.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace import clock
from millrace.errors import MissingFileError, StoreError, UnknownEpochError
from millrace_lab.faults.outage import ClientFault
from millrace_lab.soak.cluster import die_with_parent

PAUSE_SECONDS = 1.0
"""Between two rounds: the query needs the machine, too."""

OUTAGE = "outage"
"""The file of a soak's folder that is there while the store is out of reach."""

MOST = 20
"""How many texts of one kind are kept."""

PLANNED = (StoreError, UnknownEpochError, OSError, ClientFault)
"""What disturbances make of a look at the state: a failing store, an epoch that was collected."""


@dataclass
class Report:
    """What a witness has found so far."""

    epoch: int = 0
    """The newest that it has compared."""
    counts: Counter[str] = field(default_factory=Counter)
    """What it did, and what it met."""
    mismatches: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(json.dumps(vars(self)))
        temporary.replace(path)

    @staticmethod
    def read(path: Path) -> Report:
        """An empty one if there is none yet."""
        if not path.exists():
            return Report()
        found: dict[str, Any] = json.loads(path.read_text())
        return Report(**{**found, "counts": Counter(found["counts"])})


Round = Callable[[Report], None]


def run(prepare: Callable[[Path, bool], Round]) -> None:
    """The program: rounds until it is asked to stop."""
    folder, name, chosen_keys = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "chosen"
    die_with_parent()
    files = folder / "witnesses"
    report, step = Report(), prepare(folder, chosen_keys)
    while not (files / f"{name}.stop").exists():
        begin(step, report)
        report.write(files / f"{name}.json")
        clock.sleep(PAUSE_SECONDS)


def begin(step: Round, report: Report) -> None:
    """One round, whatever becomes of it."""
    try:
        step(report)
    except Exception as error:
        if is_planned(error):
            report.counts[f"met {type(error).__name__}"] += 1
        elif len(report.problems) < MOST:
            report.problems.append(f"{type(error).__name__}: {error}"[:1500])
    del report.mismatches[MOST:]


def is_planned(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is one that disturbances explain.

    A file may be missing to a reader that has no lease: because the store refused it, or because
    the clock has jumped over its end.
    """
    while error is not None:
        if isinstance(error, (*PLANNED, MissingFileError)):
            return True
        error = error.__cause__
    return False
