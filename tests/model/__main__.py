"""Check the protocol in the full bounds, and that the checker finds what is wrong on purpose.

python -m tests.model            everything
python -m tests.model --quick    what the tests check
"""

from __future__ import annotations

import sys

from rich.console import Console
from tests.model.bounds import FULL, QUICK, SHOWN_IN
from tests.model.checker import explore
from tests.model.invariants import INVARIANTS
from tests.model.protocol import Protocol

from millrace import clock

console = Console(highlight=False)


def main(quick: bool) -> int:
    wrong = 0
    console.print("invariants: " + "; ".join(INVARIANTS))
    for name, bounds in (QUICK if quick else FULL).items():
        protocol = Protocol(bounds)
        started = clock.stopwatch()
        with console.status(name) as status:
            found = explore(
                protocol.initial(),
                protocol.successors,
                canonical=protocol.canonical,
                tell=lambda states, name=name: status.update(f"{name}: {states:,} states"),  # type: ignore[misc]
            )
        seconds = clock.stopwatch() - started
        console.print(
            f"{'BROKEN' if found.broken else 'holds'}: {name}: {found.states:,} states, "
            f"{found.steps:,} steps, depth {found.depth}, {seconds:.0f} s"
        )
        if found.broken is not None:
            wrong += 1
            for number, (action, _) in enumerate(found.trace, 1):
                console.print(f"  {number:3} {action}")
            console.print(f"  {len(found.trace) + 1:3} {found.broken.action}: {found.broken}")
    for deviation, bounds in SHOWN_IN.items():
        protocol = Protocol(bounds, deviation)
        found = explore(protocol.initial(), protocol.successors, canonical=protocol.canonical)
        told = f"found in {len(found.trace) + 1} steps: {found.broken}"
        console.print(f"{deviation.value}: {told if found.broken else 'NOT FOUND'}")
        wrong += found.broken is None
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
