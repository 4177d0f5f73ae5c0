"""Random changes, epochs that are skipped, and mirrors that start again, against a plain dict."""

from __future__ import annotations

import copy
import json
import tempfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.mirrors.mirror import Mirror

Change = tuple[int, str, int]
changes = st.tuples(
    st.integers(0, 5), st.sampled_from(["set", "append", "put", "forget"]), st.integers(0, 3)
)
turns = st.lists(
    st.tuples(
        st.lists(changes, max_size=6), st.sampled_from(["skip", "follow", "restart", "reset"])
    ),
    min_size=1,
    max_size=8,
)


class Notes(mr.Processor):
    """Does what its rows say."""

    last = mr.Value("long")
    recent = mr.List("long")
    marks = mr.Map("string", "long")

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        for row in rows:
            if row.what == "set":
                self.last.set(row.value)
            elif row.what == "append":
                self.recent.append(row.value)
            elif row.what == "put":
                self.marks[str(row.value)] = row.value
            else:
                for state in (self.last, self.recent, self.marks):
                    state.clear()
        yield from ()


class Oracle:
    """The same with dicts."""

    def __init__(self) -> None:
        self.keys: dict[int, dict[str, Any]] = {}

    def apply(self, rows: list[Change]) -> None:
        for key, what, value in rows:
            state = self.keys.setdefault(key, {"last": None, "recent": [], "marks": {}})
            if what == "set":
                state["last"] = value
            elif what == "append":
                state["recent"].append(value)
            elif what == "put":
                state["marks"][str(value)] = value
            else:
                self.keys[key] = {"last": None, "recent": [], "marks": {}}
        empty = [k for k, s in self.keys.items() if s == {"last": None, "recent": [], "marks": {}}]
        for key in empty:
            del self.keys[key]

    def shown(self) -> dict[int, Any]:
        return copy.deepcopy(self.keys)


def rows_of(mirror: Mirror) -> dict[int, Any]:
    raw = mirror._target.rows()  # type: ignore[attr-defined]
    return {json.loads(key)[0]: json.loads(row) for key, row in raw.items()}


@given(turns)
def test_a_mirror_is_the_state_at_its_epoch(given_turns: list[tuple[list[Change], str]]) -> None:
    harness = mr.testing.Harness(
        Notes(), key="id", schema="id long, what string, value long", output="id long"
    )
    oracle, epoch = Oracle(), 0
    history: dict[int, dict[int, Any]] = {0: {}}
    with tempfile.TemporaryDirectory() as folder:
        mirror = mr.mirror(harness.location, f"rocksdb:{folder}", operator="tested")
        try:
            for rows, turn in given_turns:
                harness.send([{"id": k, "what": what, "value": v} for k, what, v in rows])
                oracle.apply(rows)
                epoch += 1
                history[epoch] = oracle.shown()
                if turn == "restart":
                    mirror.close()
                    mirror = mr.mirror(harness.location, f"rocksdb:{folder}", operator="tested")
                elif turn == "reset":
                    assert mirror.reset() == epoch
                elif turn == "follow":
                    assert mirror.catch_up() == epoch
                assert mirror.behind().epochs == epoch - mirror.epoch
                assert rows_of(mirror) == history[mirror.epoch]
            mirror.catch_up()
            assert rows_of(mirror) == history[epoch]
        finally:
            mirror.close()
