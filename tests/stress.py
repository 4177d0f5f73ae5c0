"""Matrices of which `make test` runs a few cells, and `make stress` all the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which those not kept are marked `stress`; a tuple is several of them."""
    every = list(values)
    assert [value for value in kept if value not in every] == []
    return [value if value in kept else _stressful(value) for value in every]


def _stressful(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.stress)
