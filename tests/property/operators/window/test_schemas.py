"""Windows of rows whose keys are of any type, several columns and NULLs among them.

Which windows there are is `test_windows`'; here each of its keys stands for one of drawn types.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.operators.schemas import TypedKeys, typed_keys
from tests.property.operators.window.strategies import EPOCH, SECOND, START
from tests.unit.operators.window.driving import (
    FUNCTIONS,
    NAME,
    Oracle,
    Windowed,
    make_operator,
    micros,
    partial_table,
    same,
    shown,
)

from millrace import clock
from millrace.operators.operator import Column
from millrace.operators.window.emission import FINAL, UPDATE, Emission
from millrace.operators.window.operator import WindowOperator
from millrace.operators.window.panes import Windows
from millrace.operators.window.spec import WindowDefinition
from millrace.reading.reader import open_location

LETTERS = "abcd"
# The last of the letters stands for the empty key of the epochs.
SIZES = st.sampled_from([Windows(10 * SECOND, 10 * SECOND), Windows(10 * SECOND, 2 * SECOND)])


def renamed(key: str | None) -> str | None:
    return "d" if key == "" else key


@settings(max_examples=settings().max_examples // 2)
@given(
    keys=typed_keys(LETTERS),
    windows=SIZES,
    emission=st.sampled_from([Emission(FINAL), Emission(UPDATE)]),
    epochs=st.lists(EPOCH, min_size=2, max_size=4),
    shards=st.integers(1, 3),
)
def test_keys_of_any_type_have_their_windows(
    keys: TypedKeys, windows: Windows, emission: Emission, epochs: list[Any], shards: int
) -> None:
    plain = make_operator(windows, emission)
    definition = WindowDefinition(
        keys.described, windows, plain.definition.aggregates, emission, ()
    )
    fields = [*keys.described, Column("v", plain.definition.aggregates[0].type)]
    driven = Windowed(
        f"memory://typed-windows-{clock.fresh_id()}",
        WindowOperator(NAME, definition, fields),
        shards,
    )
    oracle = Oracle(windows, emission)
    watermark = START
    for given_partitions, step, _ in epochs:
        partitions = [[(renamed(k), t, v) for k, t, v in rows] for rows in given_partitions]
        driven.watermark_us = watermark
        emitted = driven.send(keys.sent(partial_table(plain, partitions)))
        expected = oracle.send([row for rows in partitions for row in rows], watermark, 0)
        found = {}
        for row in emitted:
            key = keys.letter(row), micros(row["window"]["end"]), emission.mode == FINAL
            assert key not in found
            found[key] = [row[f"{function}_v"] for function, _ in FUNCTIONS]
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert all(map(same, found[key], shown(values)))
        watermark += step
    left = {
        (key, end)
        for key, pane in oracle.rows
        for end in oracle.window_ends(pane)
        if end > oracle.late_us
    }
    with open_location(driven.journal.store.url, lease=False) as reader:
        rows = reader.to_arrow().to_pylist(maps_as_pydicts="strict")
    assert {(keys.letter(row), micros(row["window"]["end"])) for row in rows} == left
    assert len(rows) == len(left)
