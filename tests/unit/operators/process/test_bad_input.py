"""What a user can do wrong with a processor; the error says what, where, and for which key."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import threading
from typing import Any

import pytest

import millrace as mr
from millrace.errors import (
    DuplicateNameError,
    MillraceError,
    ProcessorError,
    StateAccessError,
    StateTypeError,
    TimerError,
    UnknownColumnError,
    UnsupportedTypeError,
    UsageError,
)
from millrace.testing import Harness, run

UTC = dt.UTC
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=UTC)


class Rig(mr.Processor):
    """Does what a row's number says."""

    number = mr.Value("long")
    ratio = mr.Value("double")
    text = mr.Value("string")
    flag = mr.Value("boolean")
    money = mr.Value("decimal(6,2)")
    day = mr.Value("date")
    at = mr.Value("timestamp")
    blob = mr.Value("binary")
    nested = mr.Value("struct<xs:array<long>,m:map<string,int>,inner:struct<a:int>>")
    best = mr.Reducing("long", max)
    stats = mr.Aggregating("long", create=int, add=lambda a, x: None if x < 0 else a + x)
    items = mr.List("long")
    pages = mr.Map("string", "long")
    tags = mr.Set("long")
    alarm = mr.EventTimeTimer()
    tick = mr.ProcessingTimeTimer()

    def __init__(self, action: Any) -> None:
        self.action = action

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        for row in rows:
            if row.x == 1:
                self.action(self, ctx)

    def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
        raise ValueError("on time")


def harness(processor: Any, output: str = "n long") -> Harness:
    return Harness(
        processor,
        key="k",
        schema="k string, x int, at timestamp",
        output=output,
        event_time="at",
    )


ROWS = [
    {"k": "fine", "x": 0, "at": NOON},
    {"k": "odd", "x": 0, "at": NOON},
    {"k": "odd", "x": 1, "at": NOON},
]


def refused(action: Any, error: type[MillraceError]) -> str:
    """The error's text; nothing may have been committed."""
    tested = harness(Rig(action))
    tested.advance_watermark(NOON)
    with pytest.raises(error) as caught:
        tested.send(ROWS)
    assert tested.state() == []
    assert tested.state("pages") == []
    return str(caught.value)


WRONG_VALUES: list[tuple[str, Any]] = [
    ("number", 1.5),
    ("number", True),
    ("number", "1"),
    ("number", 2**63),
    ("number", decimal.Decimal(1)),
    ("ratio", "1.0"),
    ("ratio", True),
    ("text", b"bytes"),
    ("text", 5),
    ("text", "lone \ud800"),
    ("flag", 1),
    ("money", 1.5),
    ("money", decimal.Decimal("1.005")),
    ("money", decimal.Decimal("123456.00")),
    ("day", NOON),
    ("day", "2024-01-01"),
    ("at", 5),
    ("at", dt.date(2024, 1, 1)),
    ("blob", "text"),
    ("nested", {"xs": [1, 2.5]}),
    ("nested", {"xs": "abc"}),
    ("nested", {"ys": [1]}),
    ("nested", {"m": {"a": True}}),
    ("nested", {"m": [("a", 1)]}),
    ("nested", {"inner": {"a": "x"}}),
    ("nested", 5),
    ("best", "x"),
]


@pytest.mark.parametrize(("state", "value"), WRONG_VALUES, ids=repr)
def test_a_value_of_the_wrong_type_names_operator_state_and_key(state: str, value: Any) -> None:
    message = refused(lambda self, ctx: getattr(self, state).set(value), StateTypeError)
    assert repr(state) in message
    assert "'tested'" in message
    assert "Key(k='odd')" in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("state", "method", "arguments", "named"),
    [
        ("items", "append", ("x",), "'x'"),
        ("items", "append", (1.5,), "1.5"),
        ("pages", "set", ("a", "x"), "'x'"),
        ("pages", "set", (5, 1), "5"),
        ("pages", "set", (b"a", 1), "b'a'"),
        ("pages", "set", ("\ud800", 1), "ud800"),
        ("pages", "get", (1,), "1"),
        ("pages", "contains", ((),), "()"),
        ("pages", "delete", (1.0,), "1.0"),
        ("tags", "add", (True,), "True"),
        ("tags", "add", ("1",), "'1'"),
        ("tags", "add", (2**63,), str(2**63)),
        ("tags", "add", ([1],), "[1]"),
    ],
)
def test_an_entry_of_the_wrong_type_names_operator_state_and_key(
    state: str, method: str, arguments: tuple[Any, ...], named: str
) -> None:
    def action(self: Any, ctx: Any) -> None:
        getattr(getattr(self, state), method)(*arguments)

    message = refused(action, StateTypeError)
    assert repr(state) in message
    assert "'tested'" in message
    assert "Key(k='odd')" in message
    assert named in message


def test_an_add_function_must_return_the_accumulator() -> None:
    assert "'stats'" in refused(lambda self, ctx: self.stats.add(-1), StateTypeError)
    assert "no merge function" in refused(lambda self, ctx: self.stats.merge(1), UsageError)


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (lambda self, ctx: self.alarm.set(NOON), "the watermark"),
        (lambda self, ctx: self.alarm.set(NOON - mr.days(1)), "2023-12-31T12:00"),
        (lambda self, ctx: self.tick.set(ctx.processing_time), "processing time"),
        (lambda self, ctx: self.alarm.set(5), "not int"),
        (lambda self, ctx: self.alarm.set(None), "not NoneType"),
        (lambda self, ctx: self.alarm.set(NOON.date()), "not date"),
        (lambda self, ctx: self.alarm.set(NOON + mr.days(1), label=5), "label"),
        (lambda self, ctx: self.alarm.get(label=None), "label"),
    ],
)
def test_a_timer_that_cannot_be_set(action: Any, named: str) -> None:
    message = refused(action, TimerError)
    assert named in message
    assert "'tested'" in message
    assert "Key(k='odd')" in message
    assert "x=1" in message


def test_a_naive_time_is_in_utc() -> None:
    class Alarm(mr.Processor):
        alarm = mr.EventTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.alarm.set(dt.datetime(2024, 1, 1, 13))

        def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
            yield (round((timer.time - NOON) / mr.minutes(1)),)

    tested = harness(Alarm())
    tested.send([{"k": "a", "at": dt.datetime(2024, 1, 1, 12)}])
    assert tested.advance_watermark(dt.datetime(2024, 1, 1, 13)) == [(60,)]


def test_user_code_that_raises_names_operator_key_and_row() -> None:
    def action(self: Any, ctx: Any) -> None:
        self.number.set(5)
        raise LookupError("no such thing")

    message = refused(action, ProcessorError)
    assert "Rig.process()" in message
    assert "LookupError: no such thing" in message
    assert "'tested'" in message
    assert "Key(k='odd')" in message
    assert "Row(k='odd', x=1" in message


def test_an_epoch_that_failed_can_be_run_again() -> None:
    class Once(mr.Processor):
        n = mr.Value("long", default=0)
        seen = mr.Map("long", "long")
        alarm = mr.EventTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            self.n.set(self.n.get() + len(rows))
            self.seen[self.n.get()] = 1
            self.alarm.set(NOON + mr.minutes(self.n.get()))
            if rows[0].x == 1:
                raise RuntimeError
            yield (self.n.get(),)

        def on_timer(self, key: Any, timer: mr.Timer, ctx: mr.Context) -> Any:
            yield (-self.n.get(),)

    tested = harness(Once())
    good, bad = {"k": "a", "x": 0, "at": NOON}, {"k": "a", "x": 1, "at": NOON}
    assert tested.send([good]) == [(1,)]
    for _ in range(3):
        with pytest.raises(ProcessorError):
            tested.send([bad])
    assert tested.send([good]) == [(2,)]
    assert sorted(row["key"] for row in tested.state("seen")) == [1, 2]
    assert tested.advance_watermark(NOON + mr.minutes(1)) == []
    assert tested.advance_watermark(NOON + mr.minutes(2)) == [(-2,)]
    assert tested.advance_watermark(NOON + mr.minutes(3)) == []


def test_on_timer_that_raises_names_operator_and_key_and_fires_again() -> None:
    tested = harness(Rig(lambda self, ctx: self.alarm.set(NOON + mr.minutes(1))))
    tested.send(ROWS)
    for _ in range(2):
        with pytest.raises(ProcessorError, match=r"Rig.on_timer\(\) of operator 'tested'.*'odd'"):
            tested.advance_watermark(NOON + mr.minutes(1))


class Emitting(mr.Processor):
    def __init__(self, result: Any) -> None:
        self.result = result

    def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
        return [(1,)] if key.k == "fine" else self.result


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ([(1, 2)], "a tuple of 1 values"),
        ([()], "a tuple of 1 values"),
        ([5], "emitted 5"),
        ([{"n": 1}], "a tuple of 1 values"),
        ([None], "emitted None"),
        (["a"], "emitted 'a'"),
        ([("a",)], "not int"),
        ([(1.5,)], "not int"),
        ([(1,), (2**63,)], str(2**63)),
    ],
)
def test_an_output_row_that_does_not_fit_names_operator_and_key(result: Any, named: str) -> None:
    tested = harness(Emitting(result))
    with pytest.raises(StateTypeError) as caught:
        tested.send(ROWS)
    message = str(caught.value)
    assert named in message
    assert "'tested'" in message
    assert "Key(k='odd')" in message
    assert "struct<n:bigint>" in message


def test_a_result_that_is_not_rows() -> None:
    with pytest.raises(ProcessorError, match="not iterable"):
        harness(Emitting(5)).send(ROWS)


def test_rows_may_be_lists_or_named_tuples_and_hold_none() -> None:
    class Echo(mr.Processor):
        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            return [list(rows[0]), rows[0]]

    row = {"k": "a", "x": None, "at": None}
    emitted = harness(Echo(), "k string, x int, at timestamp").send([row])
    assert emitted == [("a", None, None)] * 2


OUTSIDE = [
    lambda p: p.number.get(),
    lambda p: p.number.set(1),
    lambda p: p.best.add(1),
    lambda p: p.stats.add(1),
    lambda p: p.stats.merge(1),
    lambda p: p.items.append(1),
    lambda p: len(p.items),
    lambda p: list(p.items),
    lambda p: p.items[0],
    lambda p: p.pages.get("a"),
    lambda p: p.pages["a"],
    lambda p: p.pages.__setitem__("a", 1),
    lambda p: p.pages.__delitem__("a"),
    lambda p: "a" in p.pages,
    lambda p: p.tags.add(1),
    lambda p: p.alarm.set(NOON),
    lambda p: p.tick.cancel(),
]


@pytest.mark.parametrize("use", OUTSIDE)
def test_state_used_outside_of_process(use: Any) -> None:
    with pytest.raises(StateAccessError, match="outside of process"):
        use(Rig(None))


@pytest.mark.parametrize("use", OUTSIDE)
def test_a_handle_that_was_kept_is_of_no_use_later(use: Any) -> None:
    kept: list[Any] = []

    class Keeper(Rig):
        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any:
            KEPT.append(self)

    KEPT = kept
    harness(Keeper(None)).send(ROWS)
    with pytest.raises(StateAccessError, match="outside of process"):
        use(kept[0])


def test_an_unknown_state_is_an_attribute_error_in_user_code() -> None:
    message = refused(lambda self, ctx: self.nmber.get(), ProcessorError)
    assert "AttributeError" in message
    assert "nmber" in message


def test_processors_that_cannot_run() -> None:
    class NoProcess(mr.Processor):
        n = mr.Value("long")

    class NoTimer(mr.Processor):
        alarm = mr.EventTimeTimer()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    class OnInstance(mr.Processor):
        def __init__(self) -> None:
            self.n = mr.Value("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    class NoBatch(mr.BatchProcessor):
        n = mr.Value("long")

    for processor, message in [
        (NoTimer, "takes an instance"),
        (NoProcess(), "has no process"),
        (NoTimer(), "has no on_timer"),
        (OnInstance(), "class body"),
        (NoBatch(), "has no process"),
        (5, "not int"),
        (lambda key, rows, ctx: None, "not function"),
    ]:
        with pytest.raises(UsageError, match=message):
            harness(processor)


def test_a_state_may_not_have_the_name_of_a_key_column() -> None:
    class Clash(mr.Processor):
        k = mr.Value("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    class System(mr.Processor):
        _hi = mr.Value("long")

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    for processor in (Clash(), System()):
        with pytest.raises(DuplicateNameError):
            harness(processor)


@pytest.mark.parametrize(
    "ttl",
    ["", "soon", "5", "-5 seconds", "1.5 seconds", "5 parsecs", "0 seconds", "5 seconds ago", 5],
)
def test_a_ttl_that_is_not_a_duration(ttl: Any) -> None:
    with pytest.raises(UsageError, match="duration"):
        mr.Value("long", ttl=ttl)


@pytest.mark.parametrize("ttl", [dt.timedelta(0), dt.timedelta(seconds=-1), "99999999999 weeks"])
def test_a_ttl_of_no_sensible_length(ttl: Any) -> None:
    with pytest.raises(UsageError, match="duration"):
        mr.Map("long", "long", ttl=ttl)


def test_wrong_declarations() -> None:
    with pytest.raises(UsageError, match="ttl_time"):
        mr.Value("long", ttl="1 day", ttl_time="wall")
    with pytest.raises(UsageError, match="ttl_refresh"):
        mr.Value("long", ttl="1 day", ttl_refresh="never")
    with pytest.raises(UsageError, match="merge function"):
        mr.Reducing("long", "max")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="add="):
        mr.Aggregating("long", create=int, add=None)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedTypeError, match="'lang'"):
        mr.Value("lang")
    for wrong in ("map<string,long>", "array<map<string,long>>", "struct<a:map<int,int>>"):
        with pytest.raises(UnsupportedTypeError, match="holds a map"):
            mr.Map(wrong, "long")
        with pytest.raises(UnsupportedTypeError, match="holds a map"):
            mr.Set(wrong)


def test_unknown_columns_and_tables() -> None:
    class Quiet(mr.Processor):
        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    with pytest.raises(UnknownColumnError, match="'nope'"):
        run(Quiet(), [], key="nope", schema="k string", output="n long")
    with pytest.raises(UnknownColumnError, match="'at'"):
        run(Quiet(), [], key="k", schema="k string", output="n long", event_time="at")
    with pytest.raises(UsageError, match="no table 'pages'"):
        harness(Quiet()).state("pages")
    with pytest.raises(UsageError, match="shards"):
        harness(Quiet()).rescale(0)


def test_a_processor_that_cannot_be_copied() -> None:
    class Locked(mr.Processor):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def process(self, key: Any, rows: mr.Rows, ctx: mr.Context) -> Any: ...

    with pytest.raises(UsageError, match="cannot be copied"):
        harness(Locked()).send(ROWS)


def test_the_watermark_only_rises() -> None:
    tested = harness(Rig(None))
    tested.advance_watermark(NOON)
    with pytest.raises(UsageError, match="cannot go back"):
        tested.advance_watermark(NOON - mr.seconds(1))


def test_a_negative_count() -> None:
    assert "drop_first(-1)" in refused(lambda self, ctx: self.items.drop_first(-1), UsageError)


def test_declarations_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(mr.Value("long", default=3, ttl="1 day")))
    assert (again.default, again.ttl_us) == (3, 86_400_000_000)
