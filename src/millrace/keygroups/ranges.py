"""Sets of key groups as text, `"0-127,130"`: short in manifests, readable for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from millrace.arrays import Int64Array
from millrace.errors import MalformedError
from millrace.keygroups.groups import MAX_KEY_GROUPS

_RANGES = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")


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


def parse_ranges(text: object, below: int = MAX_KEY_GROUPS) -> Int64Array:
    """The inverse of `format_ranges`; raises unless they ascend and are all below a number."""
    if text == "":
        return np.empty(0, np.int64)
    if not isinstance(text, str) or not _RANGES.fullmatch(text):
        raise MalformedError(f"{str(text)[:80]!r} are not ranges of key groups")
    pieces = []
    following = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first) + 1
        if not following <= start < end <= below:
            raise MalformedError(
                f"{text[:80]!r} are not ascending ranges of key groups below {below}"
            )
        pieces.append(np.arange(start, end, dtype=np.int64))
        following = end
    return np.concatenate(pieces)


def listed_ranges(text: str) -> Int64Array:
    """Ranges as people write them, in any order; raises if they are none."""
    parts = text.split(",")
    if text and "" in parts:
        raise MalformedError(f"{text[:80]!r} are not ranges of key groups")
    return np.unique(np.concatenate([parse_ranges(part) for part in parts]))


def _one(start: int, last: int) -> str:
    return str(start) if start == last else f"{start}-{last}"
