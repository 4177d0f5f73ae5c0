"""Look-ups by themselves: right answers, one epoch each, while the log goes on."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import threading
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.restoring import Backup
from tests.unit.serve.counting import Counting
from tests.waiting import until

import millrace as mr
from millrace.errors import (
    KeyColumnsError,
    NotALocationError,
    UnhashableKeyError,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
)
from millrace.keygroups.hashing import fingerprints
from millrace.log import Journal
from millrace.operators.operator import Column
from millrace.serve import lookups as lookups_module
from millrace.serve.lookups import Lookups


def test_answers_are_the_state(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    rng = random.Random(3)
    names = [f"key-{i}" for i in range(300)]
    counting.epoch({names[0]: (1, 5)})
    lookups = Lookups(str(tmp_path))
    for _ in range(40):
        counting.epoch({name: (1, rng.randrange(100)) for name in rng.sample(names, 60)})
        if rng.random() < 0.5:
            assert lookups.refresh() == counting.trail.epoch
            asked = [*rng.sample(names, 50), "nobody"]
            answer = lookups.look_up("totals", {"k": pa.array(asked)})
            assert answer.standing.epoch == counting.trail.epoch
            shown = zip(asked, answer.found.tolist(), answer.rows.to_pylist(), strict=True)
            for name, found, row in shown:
                n, total = counting.state.get(name, (None, None))
                assert found == (name in counting.state)
                assert row == {"k": name, "n": n, "total": total}


def test_an_answer_is_from_one_epoch(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    names = [f"key-{i}" for i in range(200)]
    counting.epoch(dict.fromkeys(names, (1, 1)))
    done = threading.Event()
    wrong: list[str] = []
    epochs: set[int] = set()
    with Lookups(str(tmp_path), poll_seconds=0.001) as lookups:

        def ask() -> None:
            while not done.is_set():
                answer = lookups.look_up("totals", {"k": pa.array(names)})
                epochs.add(answer.standing.epoch)
                if set(answer.rows.column("n").to_pylist()) != {answer.standing.epoch}:
                    wrong.append(str(answer))

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        for _ in range(30):
            counting.epoch(dict.fromkeys(names, (1, 1)))
        while lookups.standing().epoch < 31:
            assert lookups.is_following
        done.set()
        for asker in askers:
            asker.join()
    assert not wrong
    assert len(epochs) > 1, "the log was followed while look-ups ran"


def test_a_generation_in_use_is_not_changed(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    lookups = Lookups(str(tmp_path))
    generation, standing = lookups._enter()
    assert standing.epoch == 1
    counting.epoch({"a": (1, 1)})
    assert lookups.refresh() == 2
    counting.epoch({"a": (1, 1)})
    behind = threading.Thread(target=lookups.refresh)
    behind.start()
    assert generation.epoch == 1, "the old generation waits for its reader"
    generation.leave()
    behind.join()
    assert lookups.standing().epoch == 3


def test_two_that_refresh_at_once_never_show_an_older_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    class Watched(Lookups):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_front":
                shown.append(self._front.epoch)

    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    looking = Watched(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    follow = lookups_module._Generation.follow
    both = threading.Barrier(2)

    def together(generation: lookups_module._Generation, journal: Journal) -> None:
        follow(generation, journal)
        # One that is alone goes on by itself.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)

    monkeypatch.setattr(lookups_module._Generation, "follow", together)
    other = threading.Thread(target=looking.refresh)
    other.start()
    assert looking.refresh() == 2
    other.join()
    assert shown == sorted(shown)
    assert shown[-1] == 2


def test_a_key_with_the_fingerprint_of_another_is_not_found(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"here": (1, 5)})
    (hi,), (lo,) = fingerprints([pa.array(["wanted"])], counting.journal.identity.scheme)
    counting.insert(int(hi), int(lo), "another", 9, 9)
    lookups = Lookups(str(tmp_path))
    answer = lookups.look_up("totals", {"k": pa.array(["wanted", "here"])})
    assert answer.found.tolist() == [False, True]
    assert answer.rows.column("n").to_pylist() == [None, 1]


def test_keys_are_equal_as_spark_groups_them(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path), [Column("d", T.DoubleType()), Column("s", T.StringType())])
    counting.epoch({(0.0, "x"): (1, 1), (float("nan"), None): (2, 2)})
    lookups = Lookups(str(tmp_path))
    keys = {"d": pa.array([-0.0, np.nan, None]), "s": pa.array(["x", None, None])}
    answer = lookups.look_up("totals", keys)
    assert answer.found.tolist() == [True, True, False]
    assert answer.rows.column("n").to_pylist() == [1, 2, None]


def test_keys_of_every_kind(tmp_path: Path) -> None:
    kinds = {
        "i": (T.IntegerType(), [-1, 7]),
        "day": (T.DateType(), [dt.date(2024, 5, 1), None]),
        "at": (T.TimestampType(), [dt.datetime(2024, 5, 1, tzinfo=dt.UTC), None]),
        "d": (T.DecimalType(30, 2), [Decimal("1.50"), Decimal("-3.25")]),
        "b": (T.BinaryType(), [b"\x00", b""]),
        "a": (T.ArrayType(T.StringType()), [["x", None], []]),
        "s": (T.StructType().add("x", T.LongType()), [{"x": 1}, None]),
    }
    keys = [Column(name, kind) for name, (kind, _) in kinds.items()]
    counting = Counting(str(tmp_path), keys)
    rows = list(zip(*(values for _, values in kinds.values()), strict=True))
    hashable = {str(row): row for row in rows}
    assert len(hashable) == 2
    counting.epoch(_Rows({i: (i + 1, i) for i in range(2)}, rows))
    lookups = Lookups(str(tmp_path))
    schema = lookups.operator("totals").key_fields
    columns = {
        field.name: pa.array(values, field.type)
        for field, (_, values) in zip(schema, kinds.values(), strict=True)
    }
    assert lookups.look_up("totals", columns).rows.column("n").to_pylist() == [1, 2]


class _Rows(dict[int, tuple[int, int]]):
    """Changes of keys that cannot be hashed: iterating gives the keys themselves."""

    def __init__(self, changes: dict[int, tuple[int, int]], keys: list[tuple[object, ...]]) -> None:
        super().__init__(changes)
        self._keys = keys

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._keys)

    def items(self):  # type: ignore[no-untyped-def,override]
        return super().items()


def test_epochs_that_were_forgotten_meanwhile(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    lookups = Lookups(str(tmp_path))
    for _ in range(80):
        counting.epoch({"a": (1, 1)})
    counting.collect(retain=2)
    assert counting.journal.epochs()[0] > 2, "the epoch after the one in front is gone"
    assert lookups.refresh() == 81
    assert lookups.look_up("totals", {"k": pa.array(["a"])}).rows.column("n").to_pylist() == [81]


def test_an_epoch_that_a_reader_keeps_while_the_next_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups_module, "LIST_SECONDS", 0.0)
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    lookups = Lookups(str(tmp_path))
    with mr.open(str(tmp_path), epoch=1):
        for _ in range(80):
            counting.epoch({"a": (1, 1)})
        counting.collect(retain=2)
        assert counting.journal.has(1)
        assert not counting.journal.has(2)
        assert lookups.refresh() == 81
        assert lookups.refresh() == 81
    assert lookups.look_up("totals", {"k": pa.array(["a"])}).rows.column("n").to_pylist() == [81]


def test_answers_after_a_restore_are_of_the_new_history(tmp_path: Path) -> None:
    """Whether it has come as far as the lost one by then or not."""
    url = str(tmp_path)
    counting = Counting(url)
    for _ in range(3):
        counting.epoch({"a": (1, 1)})
    backup = Backup(url)
    for _ in range(3):
        counting.epoch({"a": (1, 1)})
    behind, level, ahead, further = (Lookups(url) for _ in range(4))
    backup.restore()

    def counted(lookups: Lookups) -> tuple[int, list[int]]:
        epoch = lookups.refresh()
        found = lookups.look_up("totals", {"k": pa.array(["a"])})
        assert found.standing.epoch == epoch
        return epoch, found.rows.column("n").to_pylist()

    assert counted(behind) == (3, [3])
    restored = Counting(url)
    for _ in range(3):
        restored.epoch({"a": (100, 1)})
    assert counted(level) == (6, [303])
    restored.epoch({"a": (100, 1)})
    for lookups in (ahead, level, behind):
        assert counted(lookups) == (7, [403])
    restored.epoch({"a": (100, 1)})
    for lookups in (further, ahead, level, behind):
        assert counted(lookups) == (8, [503])


def test_a_location_without_an_epoch_answers_once_there_is_one(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    lookups = Lookups(str(tmp_path))
    with pytest.raises(UnknownEpochError, match="no committed epoch yet"):
        lookups.look_up("totals", {"k": pa.array(["a"])})
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "000000000001.json.x.tmp").write_bytes(b"half a manife")
    with pytest.raises(UnknownEpochError):
        lookups.standing()
    counting.epoch({"a": (1, 1)})
    assert lookups.refresh() == 1
    assert lookups.look_up("totals", {"k": pa.array(["a"])}).found.tolist() == [True]


def test_a_store_that_fails_for_a_while(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    lookups = Lookups(str(tmp_path), poll_seconds=0.001)
    counting.epoch({"a": (1, 1)})
    (segment,) = (tmp_path / "segments" / "totals").glob("000000000002-*")
    hidden = tmp_path / "hidden"
    segment.rename(hidden)
    with lookups:
        until(lambda: lookups.failure is not None, "failed")
        assert lookups.failure is not None
        assert "missing" in lookups.failure
        assert not lookups.is_following
        assert lookups.look_up("totals", {"k": pa.array(["a"])}).standing.epoch == 1
        hidden.rename(segment)
        until(lambda: lookups.standing().epoch == 2 and lookups.is_following, "following")


def test_bad_questions(tmp_path: Path) -> None:
    with pytest.raises(NotALocationError):
        Lookups(str(tmp_path / "nowhere"))
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 1)})
    lookups = Lookups(str(tmp_path))
    with pytest.raises(UnknownOperatorError, match="'totals' at epoch 1"):
        lookups.look_up("other", {"k": pa.array(["a"])})
    with pytest.raises(KeyColumnsError, match=r"\(k string\); 'k' is missing"):
        lookups.look_up("totals", {})
    with pytest.raises(KeyColumnsError, match="'z' is not part of it"):
        lookups.look_up("totals", {"k": pa.array(["a"]), "z": pa.array([1])})
    with pytest.raises(KeyColumnsError, match="key column 'k' is string"):
        lookups.look_up("totals", {"k": pa.array([1])})
    with pytest.raises(UnknownStateError, match="'n', 'total'"):
        lookups.look_up("totals", {"k": pa.array(["a"])}, ["mean"])


def test_collated_keys_are_refused(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path), [Column("k", T.StringType("UTF8_LCASE"))])
    counting.insert(1, 2, "a", 1, 1)
    with pytest.raises(UnhashableKeyError, match="only Spark knows"):
        Lookups(str(tmp_path)).look_up("totals", {"k": pa.array(["a"])})


def test_asking_in_other_words_costs_no_memory(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 5)})
    lookups = Lookups(str(tmp_path))
    for times in range(1, 50):
        for states in (["n", "total"] * times, ["total"] * times):
            found = lookups.look_up("totals", {"k": pa.array(["a"])}, states)
            assert found.rows.schema.names == ["k", *(["n"] if "n" in states else []), "total"]
    assert len(lookups.operator("totals")._schemas) == 2
