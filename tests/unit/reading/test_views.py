"""Views: kept up to date, whole, and readable by name."""

from __future__ import annotations

import random
from asyncio import CancelledError
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.reading.streams import Counted, draw
from tests.waiting import until

import millrace as mr
from millrace.errors import InvalidNameError, SqlError, UnknownViewError, UsageError
from millrace.ids import Epoch
from millrace.log.inspection import inspect
from millrace.reading import results
from millrace.reading.reader import follow_live
from millrace.reading.views import Views

SQL = "select sum(n) as rows, count(*) as keys from totals"


@pytest.fixture
def stream(tmp_path: Path) -> Counted:
    return Counted(str(tmp_path / "location"))


def opened(stream: Counted) -> Views:
    specs = {stream.operator.name: stream.operator.spec()}
    return Views(follow_live(stream.journal, specs), stream.journal.store)


def expected(stream: Counted, epoch: int) -> list[dict[str, int]]:
    state = stream.history[epoch]
    return [{"rows": sum(n for n, _, _ in state.values()), "keys": len(state)}]


def test_a_view_follows_the_epochs(stream: Counted) -> None:
    rng = random.Random(31)
    views = opened(stream)
    # Before the first epoch there is nothing to show, but wrong SQL is told.
    view = views.add("sizes", SQL, 1, Epoch(0))
    with pytest.raises(UnknownViewError, match="no result yet"):
        view.result()
    for _ in range(5):
        epoch = stream.send(draw(rng, 50))
        views.after_epoch(Epoch(epoch))
        assert view.wait(epoch).to_pylist() == expected(stream, epoch)
    views.close()
    # Other processes read it by name, as a result and in SQL.
    with mr.open(stream.url) as reader:
        assert reader.views() == ["sizes"]
        found = reader.view("sizes")
        assert (found.epoch, found.sql) == (5, SQL)
        assert found.rows.to_pylist() == expected(stream, 5)
        assert reader.sql("select keys from views.sizes")["keys"].to_pylist() == [
            len(stream.history[5])
        ]
    # A reader of an earlier epoch gets what the view gave then.
    with mr.open(stream.url, epoch=4) as reader:
        assert reader.view("sizes").rows.to_pylist() == expected(stream, 4)
        assert reader.sql("from views.sizes").to_pylist() == expected(stream, 4)
    assert len(stream.journal.store.list("views")) == results.KEPT
    assert inspect(stream.journal).strangers == []


def test_folders_that_are_no_views(stream: Counted) -> None:
    stream.send(draw(random.Random(33), 50))
    store = stream.journal.store
    for folder in ('x"; drop view totals; --', "a b", "1st", "ü", "x" * 64, "select"):
        result = results.ViewResult(folder, Epoch(1), SQL, pa.table({"n": [7]}))
        results.write(store, result)
    with mr.open(stream.url) as reader:
        # A name that is a word of SQL is a view's name all the same.
        assert reader.views() == ["select"]
        assert reader.sql('from views."select"').to_pylist() == [{"n": 7}]
        for name in ("a b", "../totals", "", 'x"; drop view totals; --'):
            with pytest.raises(UnknownViewError, match="its views are: 'select'"):
                reader.view(name)


def test_every_so_many_epochs(stream: Counted) -> None:
    rng = random.Random(32)
    stream.send(draw(rng, 50))
    views = opened(stream)
    view = views.add("sizes", SQL, 3, Epoch(1))
    assert view.epoch == 1
    assert view.result().to_pylist() == expected(stream, 1)
    for _ in range(4):
        views.after_epoch(Epoch(stream.send(draw(rng, 50))))
        view.wait(4 if stream.trail.epoch >= 4 else 1)
    views.close()
    assert results.epochs_of(stream.journal.store, "sizes") == [1, 4]
    assert views.get("sizes") is view


def test_a_failing_view_says_so_and_recovers(stream: Counted) -> None:
    row = (("hall", 0), 5)
    stream.send([row])
    views = opened(stream)
    sql = "select case when n = 2 then error('two') else n end as n from totals"
    view = views.add("odd", sql, 1, Epoch(1))
    assert view.result()["n"].to_pylist() == [1]
    views.after_epoch(Epoch(stream.send([row])))
    with pytest.raises(SqlError, match="two"):
        view.wait(2)
    views.after_epoch(Epoch(stream.send([row])))
    until(lambda: view.error is None, "recovered")
    assert view.wait(3)["n"].to_pylist() == [3]
    views.close()


def test_an_error_that_is_no_exception_is_shown_too(
    stream: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (("hall", 0), 5)
    stream.send([row])
    views = opened(stream)
    view = views.add("sizes", SQL, 1, Epoch(1))

    def cancelled(*arguments: object) -> None:
        raise CancelledError("by the client")

    with monkeypatch.context() as outage:
        outage.setattr(results, "write", cancelled)
        views.after_epoch(Epoch(stream.send([row])))
        until(lambda: view.error is not None, "failed")
        with pytest.raises(CancelledError):
            view.result()
    views.after_epoch(Epoch(stream.send([row])))
    until(lambda: view.epoch == 3, "refreshed")
    assert view.error is None
    views.close()


def test_what_cannot_be_a_view(stream: Counted) -> None:
    views = opened(stream)
    for name in ("", "a b", "../x", "1a", "x" * 64):
        with pytest.raises(InvalidNameError, match="cannot be a view's name"):
            views.add(name, SQL, 1, Epoch(0))
    for every in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="a number of epochs"):
            views.add("v", SQL, every, Epoch(0))  # type: ignore[arg-type]
    with pytest.raises(SqlError, match="The tables are totals"):
        views.add("v", "select * from nowhere", 1, Epoch(0))
    with pytest.raises(UnknownViewError, match="its views are: none"):
        views.get("v")
    stream.send(draw(random.Random(34), 5))
    with (
        mr.open(stream.url) as reader,
        pytest.raises(UnknownViewError, match="no result of a view"),
    ):
        reader.view("v")
    assert stream.journal.store.list("views") == []
    views.close()
