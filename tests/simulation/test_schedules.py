"""Many schedules, each from its own seed: fifty in `make test`, three hundred in `make stress`.

A schedule that fails is named, and runs again by `python -m tests.simulation SEED`, which says what
happens in it. More of them: MILLRACE_SCHEDULES=20000; others: MILLRACE_FIRST_SEED=100000.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.simulation.driver import POINTS
from tests.simulation.world import run
from tests.stress import few

from millrace.reconfigure.moves import FINAL
from millrace.reconfigure.requests import KINDS
from millrace.reconfigure.strategies import STRATEGIES

SCHEDULES = int(os.environ.get("MILLRACE_SCHEDULES", "300"))
FIRST_SEED = int(os.environ.get("MILLRACE_FIRST_SEED", "0"))
FEW = 50
BLOCK = 50


# Without these a schedule would prove little.
MUST_HAPPEN = [
    *(f"{strategy} done" for strategy in STRATEGIES),
    *(f"{kind} done" for kind in KINDS),
    *(f"rescale {state}" for state in FINAL),
    *(f"driver killed {point}" for point in POINTS),
    "executor killed",
    "worker ended",
    "late task",
    "late driver fenced",
    "late manifest",
    "fault of the store",
    "fault of the cluster",
    "settled without rows",
]


def run_all(seeds: range) -> tuple[list[tuple[int, str]], Counter[str]]:
    """The seeds whose schedules fail, and how; and what happened in the others."""
    logging.getLogger("millrace").setLevel(logging.CRITICAL)
    found = []
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            happened += run(seed)
        except Exception:
            found.append((seed, traceback.format_exc(limit=-4)))
    return found, happened


@pytest.mark.timeout(1200 + SCHEDULES)
@pytest.mark.parametrize("number", few([FEW, SCHEDULES], FEW))
def test_schedules(number: int) -> None:
    """State is exact, key groups have one owner, flips wait, requests are answered."""
    end = FIRST_SEED + number
    blocks = [range(s, min(s + BLOCK, end)) for s in range(FIRST_SEED, end, BLOCK)]
    # Processes of their own: a schedule replaces clocks and caches of the whole module.
    workers = min(os.cpu_count() or 1, len(blocks))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run_all, blocks))
    found = [failure for failures, _ in results for failure in failures]
    if found:
        seed, text = found[0]
        others = ", ".join(str(seed) for seed, _ in found[1:20]) or "none"
        pytest.fail(
            f"{len(found)} of {number} schedules failed. Seed {seed}:\n{text}\n"
            f"Replay it with: python -m tests.simulation {seed}\nOthers: {others}"
        )
    happened = sum((counts for _, counts in results), Counter())
    print(dict(sorted(happened.items())))
    if number >= 500:
        assert [name for name in MUST_HAPPEN if not happened[name]] == []


def test_a_seed_is_a_schedule() -> None:
    """The same seed tells the same story, so that a failure can be looked into."""
    stories: list[list[str]] = [[], []]
    for story in stories:
        run(FIRST_SEED + 7, story.append)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 3
