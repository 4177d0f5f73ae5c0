"""The processor of the program: accounts of many cars at once, beside a loop over rows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace_lab.linear_road.answers import COLUMNS
from millrace_lab.linear_road.program import ANSWER, EXIT, Cars

SCHEMA = (
    "vid int, xway int, dir int, seg int, type int, time int, lane int, qid int, "
    "lav int, toll long, accident int"
)
EPOCHS = st.lists(
    st.lists(
        st.fixed_dictionaries(
            {
                "vid": st.integers(1, 3),
                "xway": st.integers(0, 1),
                "dir": st.just(0),
                "seg": st.integers(0, 2),
                "type": st.sampled_from([0, 0, 0, 2]),
                "lane": st.sampled_from([0, 1, 2, EXIT]),
                "qid": st.integers(0, 9),
                "lav": st.integers(0, 60),
                "toll": st.integers(0, 500),
                "accident": st.sampled_from([-1, -1, 7]),
            }
        ),
        max_size=12,
    ),
    max_size=4,
)


def one_by_one(rows: list[dict[str, int]]) -> list[dict[str, int]]:
    """The answers to rows that are in order of time."""
    cars: dict[int, dict[str, Any]] = {}
    answers = []
    for row in rows:
        empty = {"at": None, "lane": -1, "toll": 0, "balance": 0, "since": 0}
        car = cars.setdefault(row["vid"], empty)
        told = {"time": row["time"], "vid": row["vid"]}
        if row["type"] == 2:
            account = {"qid": row["qid"], "balance": car["balance"], "since": car["since"]}
            answers.append({"type": 2, **told, **account})
            continue
        at = row["xway"], row["dir"], row["seg"]
        in_trip = car["at"] is not None and car["lane"] != EXIT
        if in_trip and at != car["at"]:
            car["balance"] += car["toll"]
            car["since"] = row["time"]
        if (not in_trip or at != car["at"]) and row["lane"] != EXIT:
            car["toll"] = row["toll"]
            answers.append({"type": 0, **told, "lav": row["lav"], "toll": row["toll"]})
            if row["accident"] != -1:
                where = {"xway": row["xway"], "dir": row["dir"], "seg": row["accident"]}
                answers.append({"type": 1, **told, **where})
        car["at"], car["lane"] = at, row["lane"]
    return answers


@settings(max_examples=40, deadline=None)
@given(EPOCHS, st.randoms(use_true_random=False))
def test_many_rows_of_a_car_in_an_epoch_are_taken_in_order(
    epochs: list[list[dict[str, int]]], random: Any
) -> None:
    harness = mr.testing.Harness(Cars(), key="vid", schema=SCHEMA, output=ANSWER, shards=2)
    time, found, wanted = 0, [], []
    for rows in epochs:
        for row in rows:
            # A question may come in the second of the report before it, not the other way round.
            time += 0 if row["type"] == 2 else 1
            row["time"] = time
        found += harness.send(random.sample(rows, len(rows)))
        wanted += rows
    answers = [tuple(one.get(name, 0) for name in COLUMNS) for one in one_by_one(wanted)]
    assert sorted(found) == sorted(answers)
