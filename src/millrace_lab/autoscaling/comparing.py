"""Policies beside each other: cost against an oracle's, lateness, and changes, over many seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from millrace.reconfigure.autoscale.settings import Settings
from millrace_lab.autoscaling.loads import SHAPES, make_load
from millrace_lab.autoscaling.simulated import (
    Outcome,
    Scaler,
    World,
    fixed,
    oracle_cost,
    scaled_by,
    simulate,
    with_seed,
)

LATENCY = 4.0
"""How old rows may be, in seconds."""


@dataclass(frozen=True)
class Row:
    """One policy on one kind of load; means over seeds."""

    load: str
    scaler: str
    cost: float
    """Of the oracle's."""
    worst_cost: float
    late: float
    """The share of the time in which rows were late."""
    longest: float
    """The longest time of late rows, of all seeds."""
    changes: float


def one(
    shape: str,
    seed: int,
    scaler: Scaler,
    settings: Settings,
    world: World,
    shards: int,
    seconds: float = 1200.0,
) -> tuple[Outcome, float]:
    """A run, and what the oracle would have paid."""
    load = make_load(shape, seed, seconds)
    drawn = with_seed(world, seed)
    outcome = simulate(
        drawn, load, scaler, shards=shards, latency=settings.latency or LATENCY, seed=seed
    )
    return outcome, oracle_cost(drawn, load, settings)


def compare(
    settings: Settings, seeds: Sequence[int], shapes: Sequence[str] | None = None
) -> Iterator[Row]:
    """All policies on all loads."""
    scalers: dict[str, tuple[Scaler, int]] = {
        "model": (scaled_by(settings), settings.min),
        "latency": (scaled_by(replace(settings, policy="latency")), settings.min),
        "threshold": (scaled_by(replace(settings, policy="threshold")), settings.min),
        "fixed maximum": (fixed, settings.max),
        "fixed minimum": (fixed, settings.min),
    }
    for shape in shapes or SHAPES:
        for name, (scaler, shards) in scalers.items():
            runs = [one(shape, seed, scaler, settings, World(), shards) for seed in seeds]
            ratios = [outcome.cost / oracle for outcome, oracle in runs]
            length = make_load(shape, 0).seconds
            yield Row(
                shape,
                name,
                mean(ratios),
                max(ratios),
                mean(outcome.late / length for outcome, _ in runs),
                max(outcome.longest_late for outcome, _ in runs),
                mean(len(outcome.acts) for outcome, _ in runs),
            )
