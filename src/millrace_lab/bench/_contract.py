"""What every benchmark hands back, and how it is written.

    {"name", "equal", "figures": {flat name: number}, "ratios": {flat name: number},
     "bars": [{"name", "value", "target", "ok"}], "machine", "versions", "date"}

A ratio above 1 means better than the peer, with one exception that its name says: `growth.A_over_B`
is the plain quotient of two times, so lower is better. A bar is a claim with a target; it is listed
only by a run that has the sizes the claim is about.

Invariant: times of unequal outputs mean nothing, so `equal` decides the exit code, and a missed bar
does not.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace_lab.bench._machine import machine, versions


class BenchmarkError(Exception):
    """A benchmark could not be run to its end."""


@dataclass(frozen=True)
class Bar:
    """A claim: a value and the target it must reach."""

    name: str
    value: float
    target: float
    ok: bool


@dataclass
class Result:
    """A benchmark's outcome."""

    name: str
    equal: bool = True
    figures: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    """What was unequal; for the terminal, not part of the file."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of what took part beside that which is always named."""
    _load: float = field(default_factory=lambda: os.getloadavg()[0], repr=False)

    def figure(self, name: str, value: float) -> float:
        self.figures[name] = _rounded(value)
        return value

    def ratio(self, name: str, value: float) -> float:
        self.ratios[name] = _rounded(value)
        return value

    def at_least(self, name: str, value: float, target: float) -> None:
        self.bars.append(Bar(name, _rounded(value), target, value >= target))

    def at_most(self, name: str, value: float, target: float) -> None:
        self.bars.append(Bar(name, _rounded(value), target, value <= target))

    def compare(self, what: str, same: bool) -> None:
        """Note whether two outputs were the same."""
        if not same:
            self.equal = False
            self.differences.append(what)

    @property
    def exit_code(self) -> int:
        return 0 if self.equal else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "equal": self.equal,
            "figures": self.figures,
            "ratios": self.ratios,
            "bars": [asdict(bar) for bar in self.bars],
            "machine": machine(self._load),
            "versions": versions() | self.versions,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        }

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")


def _rounded(value: float) -> float:
    """Four significant digits; more would be noise."""
    if not math.isfinite(value):
        raise BenchmarkError(f"a measured value is {value}; the run was too short to measure it.")
    if value == 0 or abs(value) >= 1000:
        return round(value)
    return float(f"{value:.4g}")
