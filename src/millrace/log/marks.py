"""What is left of epochs that were collected: a mark per range of them.

    collected/64/000000000003        some of the epochs 192 to 255 were collected
    collected/65536/000000000000     the epochs below 65,536 are long gone

A driver that slept may find the name of its epoch free although another one has committed it: the
manifest was collected. One list of the manifests would show it, after every commit. A mark shows it
too, for a request by name: where there is none, nothing was collected.

Invariant: before a manifest is deleted, its epoch is marked, and stays so. Marks of small ranges
give way to that of the large one around them only when it is there; so whoever looks for the small
one first finds one of the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from millrace.errors import AlreadyExistsError
from millrace.ids import Epoch
from millrace.log.layout import COLLECTED
from millrace.log.store import Store

SMALL = 64
"""Fewer than most queries retain: the epochs around the head are in a range without a mark."""
LARGE = 65_536


def is_marked(store: Store, epoch: Epoch) -> bool:
    """Whether an epoch may have been collected."""
    return any(store.size(_path(size, epoch // size)) is not None for size in (SMALL, LARGE))


def mark(store: Store, epochs: Iterable[Epoch]) -> None:
    """Say of epochs that they may be collected from now on."""
    for number in sorted({epoch // SMALL for epoch in epochs}):
        _leave(store, SMALL, number)


def tidy(store: Store, head: Epoch) -> None:
    """Let one large mark stand for many small ones, of epochs far behind the head."""
    large: dict[int, list[str]] = {}
    for path in store.list(f"{COLLECTED}/{SMALL}"):
        name = path.rsplit("/", 1)[-1]
        if name.isascii() and name.isdigit():
            large.setdefault(int(name) * SMALL // LARGE, []).append(path)
    for number, paths in large.items():
        if (number + 2) * LARGE <= head:
            _leave(store, LARGE, number)
            for path in paths:
                store.delete(path)


def most_marks(head: Epoch) -> int:
    """How many marks there can be at an epoch: about 2,000, and one for each large range."""
    large = max(0, head // LARGE - 1)
    return large + (head - large * LARGE) // SMALL + 1


def _leave(store: Store, size: int, number: int) -> None:
    path = _path(size, number)
    if store.size(path) is None:
        with contextlib.suppress(AlreadyExistsError):
            store.create(path, b"")


def _path(size: int, number: int) -> str:
    return f"{COLLECTED}/{size}/{number:012d}"
