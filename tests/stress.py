"""Matrices of which `make test` runs a few cells, and `make stress` a share of all the others.

The share is a sample by the cells' names: the same cells each time, at least one of each matrix.
`make stress STRESS_SHARE=1` runs all.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

SHARE = "MILLRACE_STRESS_SHARE"


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which those not kept are marked `stress`; a tuple is several of them."""
    every = list(values)
    assert [value for value in kept if value not in every] == []
    return [value if value in kept else _stressful(value) for value in every]


def left_out(items: Iterable[pytest.Item], share: float) -> set[pytest.Item]:
    """The cells of long matrices that are not in the sample."""
    matrices: dict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        is_cell = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if is_cell and item.get_closest_marker("stress") is not None:
            matrices[item.path, item.parent, item.originalname].append(item)
    found: set[pytest.Item] = set()
    for cells in matrices.values():
        cells.sort(key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
        found.update(cells[math.ceil(share * len(cells)) :])
    return found


def _stressful(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.stress)
