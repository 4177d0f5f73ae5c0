"""Loads over time: rows that come in every tenth of a second, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from millrace.arrays import Float64Array

TICK = 0.1
"""Seconds."""


@dataclass(frozen=True)
class Load:
    """How many rows a second come, and how many have come."""

    name: str
    rate: Float64Array
    """The mean rate in each tick; what an oracle knows."""
    arrived: Float64Array
    """Rows that have come before each tick."""

    @property
    def seconds(self) -> float:
        return len(self.rate) * TICK

    def before(self, time: float) -> float:
        """Rows that have come before a time."""
        at = min(max(time / TICK, 0.0), len(self.rate))
        whole = int(at)
        below = float(self.arrived[whole])
        if whole == len(self.rate):
            return below
        return below + (at - whole) * float(self.arrived[whole + 1] - self.arrived[whole])


def _steps(t: Float64Array, rng: np.random.Generator) -> Float64Array:
    """1x, 4x, 1x."""
    up, down = 0.3 * t[-1], 0.7 * t[-1]
    return np.where((t >= up) & (t < down), 4.0, 1.0)


def _stairs(t: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Levels that change every few minutes."""
    levels = rng.uniform(0.5, 4.0, size=int(t[-1] // 240) + 2)
    return levels[(t // 240).astype(np.int64)]


def _day(t: Float64Array, rng: np.random.Generator) -> Float64Array:
    """Low at night, high at noon."""
    rate: Float64Array = 2.3 - 1.8 * np.cos(2 * np.pi * t / t[-1] + rng.uniform(-0.3, 0.3))
    return rate


def _spikes(t: Float64Array, rng: np.random.Generator) -> Float64Array:
    """A quiet load with short bursts."""
    rate = np.full(len(t), 1.0)
    for begin in rng.uniform(60, t[-1] - 60, size=4):
        rate[(t >= begin) & (t < begin + rng.uniform(10, 40))] = rng.uniform(2, 4)
    return rate


def _constant(t: Float64Array, rng: np.random.Generator) -> Float64Array:
    return np.full(len(t), rng.uniform(0.5, 4.0))


SHAPES: dict[str, Callable[[Float64Array, np.random.Generator], Float64Array]] = {
    "constant": _constant,
    "steps": _steps,
    "stairs": _stairs,
    "day": _day,
    "spikes": _spikes,
}


def make_load(
    shape: str, seed: int, seconds: float = 1200.0, base: float = 5000.0, noise: float = 0.2
) -> Load:
    """A load of a shape; `base` is its 1x, `noise` the deviation of a second's rows."""
    rng = np.random.default_rng([seed, list(SHAPES).index(shape)])
    ticks = round(seconds / TICK)
    t: Float64Array = np.arange(ticks, dtype=np.float64) * TICK
    rate = base * SHAPES[shape](t, rng)
    # Rows of neighbouring ticks belong together, as those of a batch of a producer do.
    per_second = rng.lognormal(-(noise**2) / 2, noise, size=ticks // 10 + 1)
    came = rate * TICK * np.repeat(per_second, 10)[:ticks]
    return Load(shape, rate, np.concatenate([[0.0], np.cumsum(came)]))
