"""After a rehearsal, no epoch waits for a kernel to be loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.driving import fingerprint, words
from tests.unit.epoch.counting import KEY_GROUPS, Driven, expected

from millrace.epoch.rehearsal import rehearse
from millrace.ids import OperatorName
from millrace.jit import KERNELS
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column
from millrace.state.index import MIN_SLOTS

OF_STATE = {name: found for name, found in KERNELS.items() if name.startswith("millrace.state.")}


def loaded() -> set[tuple[str, object]]:
    return {(name, types) for name, found in OF_STATE.items() for types in found.signatures}


@pytest.fixture
def rehearsed() -> set[tuple[str, object]]:
    """What a process without any kernels has loaded after a rehearsal."""
    for found in OF_STATE.values():
        found._reset_overloads()
    assert loaded() == set()
    rehearse()
    return loaded()


def test_an_index_that_grows_and_merges_load_nothing(
    tmp_path: Path, rehearsed: set[tuple[str, object]]
) -> None:
    many = list(range(3 * KEY_GROUPS * MIN_SLOTS))
    driven = Driven(str(tmp_path))
    driven.epoch([1, 2])
    driven.epoch(many)
    driven.index_budget = 1
    driven.epoch([1], [2, 3])
    driven.epoch([1])
    assert driven.state() == expected([1, 2, *many, 1, 2, 3, 1])
    assert loaded() - rehearsed == set()


def test_rows_in_one_piece_and_in_several_load_nothing(
    tmp_path: Path, rehearsed: set[tuple[str, object]]
) -> None:
    count = AggregateSpec("n", "count", "*", T.LongType(), ())
    operator = AggregateOperator(OperatorName("a"), [Column("k", T.LongType())], [count])
    epochs = Epochs(str(tmp_path), operator, KEY_GROUPS, index_budget=1)
    ones = pa.array([1] * 20)

    def rows(keys: range) -> Input:
        prints = [fingerprint(key) for key in keys]
        hi, lo = words(hi for hi, _ in prints), words(lo for _, lo in prints)
        return Input(hi, lo, (pa.array(keys),), np.zeros(20, np.int32), ((ones,),))

    epochs.epoch(rows(range(20)))
    epochs.epoch(rows(range(10, 30)), rows(range(20)))
    assert loaded() - rehearsed == set()
