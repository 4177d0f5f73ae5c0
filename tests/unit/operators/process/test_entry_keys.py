"""Keys of map entries: which are the same, when they are set and when they are read back."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.epoch.shard import open_shard
from millrace.ids import Shard
from millrace.log.segment import HI, LO
from millrace.operators.process import tables
from millrace.operators.process.convert import encode_key
from millrace.state.cache import ReplicaCache
from millrace.state.owners import OWNER_HI, OWNER_LO
from millrace.testing import Harness

UTC = dt.UTC
D = decimal.Decimal
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)


def counts(key_type: str, batches: list[list[Any]]) -> list[list[tuple[Any, int]]]:
    """A map that counts, with a batch of keys per epoch: its entries after each."""

    class Counting(mr.Processor):
        seen = mr.Map(key_type, "long")

        def __init__(self, keys: list[Any]) -> None:
            self.keys = keys

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            for one in self.keys:
                self.seen[one] = self.seen.get(one, 0) + 1
                assert one in self.seen
            shown.append(self.seen.items())
            assert len(self.seen) == len(shown[-1])

    shown: list[list[tuple[Any, int]]] = []
    processor = Counting([])
    harness = Harness(processor, key="k", schema="k int", output="n int")
    for keys in batches:
        processor.keys = keys
        harness.send([{"k": 1}])
        harness.reopen()
    return shown


@pytest.mark.parametrize("whole", [0, 512])
@pytest.mark.parametrize(
    ("key_type", "alike"),
    [
        ("double", [0.0, -0.0, 0]),
        ("double", [1, 1.0]),
        ("double", [math.nan, -math.nan, float("nan")]),
        ("double", [math.inf, float("inf")]),
        ("float", [0.1, 0.1]),
        ("decimal(38,10)", [D(1), D("1.0"), D("1.0000000000"), 1]),
        ("decimal(38,0)", [D("1" + "0" * 36 + "1"), 10**37 + 1]),
        ("decimal(10,2)", [D(0), D("-0.00"), 0]),
        ("timestamp", [NOON, dt.datetime(2024, 1, 1, 12)]),
        ("timestamp", [NOON, NOON.astimezone(dt.timezone(dt.timedelta(hours=5)))]),
        ("binary", [b"a", bytearray(b"a")]),
        ("array<int>", [[1, None], (1, None)]),
        ("struct<a:int,b:array<double>>", [{"a": 1, "b": [0.0]}, {"b": [-0.0], "a": 1}, (1, [0])]),
        ("struct<a:int,b:string>", [{"a": 1, "b": None}, {"a": 1}, (1, None)]),
        ("string", ["", ""]),
        ("long", [2**63 - 1]),
        ("long", [None, None]),
        ("date", [dt.date(1, 1, 1), dt.date(9999, 12, 31)][:1]),
    ],
)
def test_keys_that_are_the_same(
    key_type: str, alike: list[Any], whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WHOLE", whole)
    for shown in (counts(key_type, [alike])[-1], counts(key_type, [[one] for one in alike])[-1]):
        assert [count for _, count in shown] == [len(alike)]


@pytest.mark.parametrize("whole", [0, 512])
@pytest.mark.parametrize(
    ("key_type", "different"),
    [
        ("double", [0.0, 5e-324, math.nan, math.inf, -math.inf]),
        (
            "decimal(38,10)",
            [D("123456789012345678901234567.1"), D("123456789012345678901234567")],
        ),
        ("string", ["", " ", "\x00", "a", "A", "ä", "a\u0308"]),
        ("binary", [b"", b"\x00", b"\x00\x00", b"i1"]),
        ("long", [0, 1, -1, 2**63 - 1, -(2**63), None]),
        ("boolean", [True, False, None]),
        ("array<string>", [[], [""], ["", ""], ["a", "b"], ["ab"], [None], None]),
        ("struct<a:string,b:string>", [("a", "bc"), ("ab", "c"), (None, "a"), ("a", None), None]),
        ("date", [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        ("timestamp", [NOON, NOON + dt.timedelta(microseconds=1)]),
    ],
)
def test_keys_that_differ(
    key_type: str, different: list[Any], whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "WHOLE", whole)
    for batches in ([different], [[one] for one in different]):
        shown = counts(key_type, [*batches, different])[-1]
        assert [count for _, count in shown] == [2] * len(different)


def test_keys_come_back_as_they_were_given() -> None:
    keys = [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]
    now, later = counts("struct<a:int,b:array<string>>", [keys, []])
    assert [key for key, _ in now] == keys
    assert sorted(later, key=repr) == sorted(now, key=repr)


def test_no_two_encodings_are_the_same() -> None:
    different = [
        None, True, False, 0, 1, -1, "", "1", "n", b"", b"1", 0.5, 1.5, D(1), D("0.1"), D(10),
        D("1E+5"), D(0), NOON, NOON.date(), (), ("",), ("", ""), ("a", "b"), ("ab",), (("a",), "b"),
        (("a", "b"),), ("\x00",), (b"\x00",),
    ]  # fmt: skip
    assert len({encode_key(key) for key in different}) == len(different)
    with pytest.raises(TypeError):
        encode_key(pa.array([1]))


def test_text_with_lone_surrogates_is_not_found_and_not_stored() -> None:
    with pytest.raises(mr.MillraceError, match="surrogates"):
        counts("string", [["\ud800"]])


def test_entries_are_found_where_earlier_versions_put_them() -> None:
    """The fingerprint of an entry is part of the format: locations that exist depend on it."""

    class Keeps(mr.Processor):
        m = mr.Map("string", "long")
        xs = mr.List("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.m["entry"] = 1
            self.xs.extend([10, 11, 12])

    tested = Harness(Keeps(), key="k", schema="k long", output="n long")
    tested.send([{"k": 1}])
    moment = tested._shards.moment(tested._shards.times(tested._time_us))
    shard = open_shard(tested._shards.task, tested._operator, Shard(0), moment, ReplicaCache())

    def rows(table: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = shard.replicas[table].read(shard.groups).to_pylist()
        return listed

    (entry,) = rows("m")
    assert entry[HI] >> 24 == entry[OWNER_HI] >> 24
    elements = {row["value"]: row for row in rows("xs")}
    for place, value in enumerate([10, 11, 12]):
        assert elements[value][HI] == entry[OWNER_HI]
        assert elements[value][LO] == (entry[OWNER_LO] + place * 0x9E3779B97F4A7C15) % 2**64
