"""Sessions of rows whose keys are of any type, several columns and NULLs among them.

Which sessions there are is `test_sessions`'; here each of its keys stands for one of drawn types.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.operators.schemas import TypedKeys, typed_keys
from tests.property.operators.session.test_sessions import EPOCH, GAP, START, shown
from tests.property.operators.window.test_windows import micros, same
from tests.unit.operators.session.driving import UNORDERED, Oracle, make_operator, piece_table
from tests.unit.operators.window.driving import NAME, Windowed

from millrace import clock
from millrace.operators.operator import Column
from millrace.operators.session.operator import SessionOperator
from millrace.operators.session.spec import SessionDefinition
from millrace.operators.window.emission import FINAL, Emission

LETTERS = "abc"


def renamed(key: str | None) -> str | None:
    """The last of the letters stands for the empty key of the epochs."""
    return "c" if key == "" else key


@settings(max_examples=settings().max_examples // 2)
@given(
    keys=typed_keys(LETTERS),
    epochs=st.lists(EPOCH, min_size=2, max_size=4),
    shards=st.integers(1, 3),
)
def test_keys_of_any_type_have_their_sessions(
    keys: TypedKeys, epochs: list[Any], shards: int
) -> None:
    emission = Emission(FINAL)
    plain = make_operator(GAP, emission, UNORDERED)
    aggregates = plain.definition.aggregates
    definition = SessionDefinition(keys.described, GAP, aggregates, emission)
    fields = [*keys.described, Column("v", aggregates[0].type)]
    driven = Windowed(
        f"memory://typed-sessions-{clock.fresh_id()}",
        SessionOperator(NAME, definition, fields),
        shards,
    )
    oracle = Oracle(GAP, emission)
    watermark = START
    for given_partitions, step, _ in [*epochs, ([], 1_000 * GAP, 0), ([], 0, 0)]:
        partitions = [
            (number, [(renamed(k), t, v) for k, t, v in rows])
            for number, rows in enumerate(given_partitions)
        ]
        driven.watermark_us = watermark
        emitted = driven.send(keys.sent(piece_table(plain, partitions, oracle.late_us)))
        expected = oracle.send([partitions], watermark, 0)
        found = {}
        for row in emitted:
            start, end = (micros(row["session_window"][bound]) for bound in ("start", "end"))
            found[keys.letter(row), start, end, True] = [
                row[f"{function}_v"] for function, _ in UNORDERED
            ]
        assert len(found) == len(emitted)
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert all(map(same, found[key], shown(UNORDERED, values)))
        watermark += step
    assert driven.rows == 0
