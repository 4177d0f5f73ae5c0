"""Run one schedule and say what happens in it: `python -m tests.simulation SEED`."""

from __future__ import annotations

import sys

from tests.simulation.world import run

if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(dict(run(int(argument), print)))
