"""Whatever happens to a query's state, the kernels it takes were loaded before it started."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from millrace.jit import KERNELS
from millrace.epoch.rehearsal import rehearse
from tests.simulation.world import run

rehearse()
before = {name: set(kernel.signatures) for name, kernel in KERNELS.items()}
for seed in range(int(sys.argv[1])):
    run(seed)
late = {name: set(kernel.signatures) - before[name] for name, kernel in KERNELS.items()}
for name, signatures in late.items():
    if signatures and name.startswith("millrace.state."):
        print(name, *signatures)
"""


def test_nothing_is_compiled_after_the_rehearsal() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "40"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr
