"""What is shown of lists and sketches: to readers, in SQL, after an export, and while there is
nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.epochs import Epochs
from tests.unit.operators.aggregate.folding import partial_rows, partial_types

import millrace as mr
from millrace.errors import NotASketchError
from millrace.ids import OperatorName
from millrace.keygroups.hashing import fingerprints
from millrace.keygroups.scheme import Scheme
from millrace.operators.aggregate.layout import LAYOUTS
from millrace.operators.aggregate.operator import AggregateOperator
from millrace.operators.aggregate.reducers import FINDERS, resolve
from millrace.operators.aggregate.spec import AggregateSpec
from millrace.operators.input import Input
from millrace.operators.operator import Column

TEXT = T.StringType()

AGGREGATES: dict[str, tuple[str, T.DataType, dict[str, Any]]] = {
    "listed": ("collect_list", TEXT, {}),
    "known": ("collect_set", TEXT, {}),
    "distinct_": ("count_distinct", TEXT, {}),
    "usual": ("mode", TEXT, {}),
    "about": ("approx_distinct", TEXT, {"lg_k": 12}),
    "sketch": ("distinct_sketch", TEXT, {"lg_k": 12}),
    "top": ("heavy_hitters", TEXT, {"k": 2, "track": 100}),
}
GIVEN = [{"x": [["a", "b"], ["b", None]], "y": [["c"]]}, {"x": [["b", "d"]]}]
"""Epochs: key -> input partitions."""

SHOWN = {
    "listed": ["a", "b", "b", "b", "d"],
    "known": ["a", "b", "d"],
    "distinct_": 3,
    "usual": "b",
    "about": 3,
    "top": [{"item": "b", "count": 3}, {"item": "a", "count": 1}],
}


def rows(aggregates: list[AggregateSpec], given: dict[str, list[Any]], scheme: Scheme) -> Input:
    keys = [key for key, parts in given.items() for _ in parts]
    values = [part for parts in given.values() for part in parts]
    partials = []
    for spec in aggregates:
        reducer = resolve(spec.function, spec.name, spec.type, dict(spec.options))
        found = [partial_rows(reducer, spec.function, part) for part in values]
        kinds = partial_types(reducer, spec.function)
        partials.append(
            tuple(pa.array([f[i] for f in found], kind) for i, kind in enumerate(kinds))
        )
    part = np.array([n for parts in given.values() for n in range(len(parts))], np.int32)
    column = pa.array(keys)
    return Input(*fingerprints([column], scheme), (column,), part, tuple(partials))


@pytest.fixture
def location(tmp_path: Path) -> str:
    aggregates = [
        AggregateSpec(name, function, "v", data_type, tuple(sorted(options.items())))
        for name, (function, data_type, options) in AGGREGATES.items()
    ]
    operator = AggregateOperator(OperatorName("seen"), [Column("k", TEXT)], aggregates)
    running = Epochs(str(tmp_path / "location"), operator, 4)
    for shards, given in zip((1, 3), GIVEN, strict=True):
        running.shards = shards
        running.epoch(rows(aggregates, given, running.journal.identity.scheme))
    return str(tmp_path / "location")


def test_readers_see_results(location: str, tmp_path: Path) -> None:
    mr.export(location, str(tmp_path / "out"), offsets=False)
    mr.import_state(str(tmp_path / "out"), str(tmp_path / "copy"), key_groups=8, fresh_source=True)
    for place in (location, str(tmp_path / "copy")):
        reader = mr.open(place)
        row = reader.get([("x",)]).to_pylist()[0]
        assert {name: row[name] for name in SHOWN} == SHOWN
        assert reader.to_arrow().num_rows == 2
        found = reader.sql(
            "select about, len(listed) n, top[1].item best, theta_sketch_estimate(sketch) s "
            "from seen where k = 'x'"
        )
        assert found.to_pylist() == [{"about": 3, "n": 5, "best": "b", "s": 3}]
        total = reader.sql(
            "select theta_sketch_estimate(theta_union_list(list(sketch))) n from seen"
        )
        assert total.to_pylist() == [{"n": 4}]


def test_changes_have_the_new_results(location: str) -> None:
    changed = mr.open(location).changes(1).to_pylist()
    assert [row["k"] for row in changed] == ["x"]
    assert changed[0]["known"] == SHOWN["known"]


def test_bytes_that_are_no_sketch_are_refused(location: str) -> None:
    with pytest.raises(NotASketchError, match=r"b'hello'.*distinct_sketch"):
        mr.open(location).sql("select theta_sketch_estimate('hello'::blob)")


EMPTY = {
    "count": 0,
    "count_distinct": 0,
    "approx_distinct": 0,
    "collect_list": [],
    "top": [],
    "collect_set": [],
    "heavy_hitters": [],
}
"""What functions show for a key that they have not seen; all others show NULL."""

OPTIONS = {
    "first": {"ignore_nulls": False},
    "last": {"ignore_nulls": True},
    "variance": {"sample": True},
    "stddev": {"sample": False},
    "covar": {"sample": True},
    "approx_distinct": {"lg_k": 12},
    "distinct_sketch": {"lg_k": 12},
    "quantile": {"ranks": [0.5, 0.9], "single": False, "accuracy": 200},
    "heavy_hitters": {"k": 2, "track": 100},
    "top": {"k": 2},
}
NUMBERS = T.StructType().add("first", T.LongType()).add("second", T.LongType())
INPUTS = {
    "bool_and": T.BooleanType(),
    "bool_or": T.BooleanType(),
    **dict.fromkeys(("covar", "corr", "max_by", "min_by", "top"), NUMBERS),
}


@pytest.mark.parametrize("function", sorted(LAYOUTS))
def test_an_added_aggregate_shows_what_no_values_give(function: str) -> None:
    data_type = INPUTS.get(function, T.LongType())
    reducer = resolve(function, "x", data_type, dict(OPTIONS.get(function, {})))
    nothing = [pa.nulls(2, field.type) for field in reducer.fields]
    shown = reducer.result(nothing)
    shown.validate(full=True)
    assert shown.to_pylist() == [EMPTY.get(function)] * 2


def test_every_layout_has_a_reducer() -> None:
    assert LAYOUTS.keys() == FINDERS.keys()
