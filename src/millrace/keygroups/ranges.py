"""Sets of key groups as text, `"0-127,130"`: short in manifests, readable for people."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from millrace.arrays import Int64Array


def format_ranges(groups: Iterable[int]) -> str:
    """`[0, 1, 2, 5]` as `"0-2,5"`. The groups must be ascending."""
    parts: list[str] = []
    start = previous = -2
    for group in groups:
        if group != previous + 1:
            if start >= 0:
                parts.append(_one(start, previous))
            start = group
        previous = group
    if start >= 0:
        parts.append(_one(start, previous))
    return ",".join(parts)


def parse_ranges(text: str) -> Int64Array:
    """The inverse of `format_ranges`."""
    pieces = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        pieces.append(np.arange(int(first), int(last or first) + 1, dtype=np.int64))
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _one(start: int, last: int) -> str:
    return str(start) if start == last else f"{start}-{last}"
