"""Keys and entries that were chosen to collide: they stay apart, or the epoch fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.collisions import colliding_members, colliding_strings

import millrace as mr
from millrace.errors import CollisionError
from millrace.keygroups.hashing import entry_digests, fingerprints
from millrace.keygroups.scheme import CHAINED, UNSALTED
from millrace.operators.process.tables import WHOLE
from millrace.testing import Harness
from millrace.testing import epochs as testing


class Seen(mr.Processor):
    visits = mr.Map("binary", "long")
    members = mr.Set("binary")
    n = mr.Value("long", default=0)
    recent = mr.List("long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        self.n.set(self.n.get() + len(rows))
        for row in rows:
            if row.fill:
                self.visits.update({bytes([1, n % 256, n // 256]): 0 for n in range(row.fill)})
            if row.m is not None:
                self.visits[row.m] = self.visits.get(row.m, 0) + 1
                self.members.add(row.m)
        yield self.n.get(), len(self.visits), len(self.members)


def harness() -> Harness:
    return Harness(
        Seen(),
        key="k",
        schema="k string, m binary, fill int",
        output="n long, visits long, members long",
    )


def row(key: str, member: bytes | None = None, fill: int = 0) -> dict[str, Any]:
    return {"k": key, "m": member, "fill": fill}


def members_of(key: str, count: int) -> list[bytes]:
    """Members that collide in scheme 1, for the owner with this key."""
    hi, lo = fingerprints([pa.array([key])], CHAINED)
    found = colliding_members(count, int(lo[0]), prefix=1)
    owners = hi.repeat(count), lo.repeat(count)
    assert len(set(entry_digests(owners, [b"b" + m for m in found], CHAINED)[1].tolist())) == 1
    return found


def test_chosen_keys_have_a_state_each() -> None:
    tested = harness()
    keys = colliding_strings(4)
    for _ in range(2):
        tested.send([row(key) for key in keys])
    assert {r["k"]: r["n"] for r in tested.state()} == dict.fromkeys(keys, 2)


@pytest.mark.parametrize("fill", [0, 2 * WHOLE], ids=["small", "large"])
def test_chosen_entries_are_rows_of_their_own(fill: int) -> None:
    tested = harness()
    members = members_of("a", 4)
    tested.send([row("a", fill=fill)])
    for _ in range(2):
        for member in members:
            tested.send([row("a", member)])
    counted = {r["key"]: r["value"] for r in tested.state("visits") if r["value"]}
    assert counted == dict.fromkeys(members, 2)
    assert sorted(r["member"] for r in tested.state("members")) == sorted(members)


@pytest.mark.parametrize("fill", [0, 2 * WHOLE], ids=["small", "large"])
def test_entries_that_collide_never_merge(monkeypatch: pytest.MonkeyPatch, fill: int) -> None:
    """In a location of format 1 they can: the epoch fails, and what was there stays."""
    monkeypatch.setattr(testing, "UNSALTED", CHAINED)
    tested = harness()
    first, second = members_of("a", 2)
    tested.send([row("a", first, fill)])
    with pytest.raises(CollisionError, match="one fingerprint"):
        tested.send([row("a", second)])
    counted = {r["key"]: r["value"] for r in tested.state("visits") if r["value"]}
    assert counted == {first: 1}


def test_entries_that_collide_in_one_epoch_never_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "UNSALTED", CHAINED)
    tested = harness()
    with pytest.raises(CollisionError, match="one fingerprint"):
        tested.send([row("a", member) for member in members_of("a", 2)])


class Lists(mr.Processor):
    xs = mr.List("long")

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        for r in rows:
            self.xs.append(r.v)
        yield (len(self.xs),)


def test_elements_of_owners_that_were_chosen_never_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two keys whose fingerprints are a position apart, as one who knows the salt can choose."""
    stride = 0x9E3779B97F4A7C15
    chosen = {1: (5, 1000), 2: (5, (1000 + stride) % 2**64)}

    def chosen_fingerprints(columns: list[pa.Array], scheme: Any) -> Any:
        found = [chosen[k] for k in columns[0].to_pylist()]
        return np.uint64([hi for hi, _ in found]), np.uint64([lo for _, lo in found])

    monkeypatch.setattr(testing, "fingerprints", chosen_fingerprints)
    tested = Harness(Lists(), key="k", schema="k long, v long", output="n long")
    tested.send([{"k": 2, "v": 20}])
    tested.send([{"k": 1, "v": 10}])
    with pytest.raises(CollisionError, match="one fingerprint"):
        tested.send([{"k": 1, "v": 11}])
    assert [(r["position"], r["value"]) for r in tested.state("xs")] == [(0, 10), (0, 20)]


def test_a_harness_is_in_the_same_order_every_time() -> None:
    orders = []
    for _ in range(2):
        tested = harness()
        tested.send([row(f"key {n}") for n in range(50)])
        orders.append([r["k"] for r in tested.state()])
    assert orders[0] == orders[1]
    assert testing.UNSALTED == UNSALTED
