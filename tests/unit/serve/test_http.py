"""The HTTP face: right answers as JSON, and refusals that say why."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import types as T
from tests.unit.serve.counting import Counting

from millrace.operators.operator import Column
from millrace.reading.json_values import rows_to_json
from millrace.serve import http as serving
from millrace.serve.http import App
from millrace.serve.lookups import Lookups
from millrace.serve.values import key_from_text, keys_from_json

LOCAL = "http://127.0.0.1:8470"


class Client:
    """Requests to the application itself, without a network."""

    def __init__(self, app: App, base: str = LOCAL) -> None:
        self._app = app
        self._base = base

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._base) as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def lookups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lookups]:
    counting = Counting(str(tmp_path_factory.mktemp("location")))
    counting.epoch({"a": (1, 5), "b/c d": (2, 6), "": (3, 7)})
    with Lookups(counting.url) as following:
        yield following


@pytest.fixture(scope="module")
def ask(lookups: Lookups) -> Client:
    return Client(App(lookups))


def test_one_key(ask: Client) -> None:
    answer = ask("GET", "/v1/totals", params={"k": "b/c d"})
    body = answer.json()
    assert answer.status_code == 200
    assert body["row"] == {"k": "b/c d", "n": 2, "total": 6}
    assert body["found"] is True
    assert body["epoch"] == 1
    assert body["staleness_ms"] >= 0
    assert dt.datetime.fromisoformat(body["committed"]).tzinfo is not None
    assert ask("GET", "/v1/totals?k=").json()["row"]["n"] == 3


def test_one_key_that_is_not_there(ask: Client) -> None:
    answer = ask("GET", "/v1/totals?k=nobody")
    assert answer.status_code == 200
    assert (answer.json()["found"], answer.json()["row"]) == (False, None)


def test_some_states(ask: Client) -> None:
    assert ask("GET", "/v1/totals?k=a&_states=total").json()["row"] == {"k": "a", "total": 5}


def test_many_keys(ask: Client) -> None:
    body = {"keys": [{"k": "nobody"}, {"k": "a"}, {"k": None}, {"k": "a"}], "states": ["n"]}
    answer = ask("POST", "/v1/totals/lookup", json=body)
    assert answer.json()["rows"] == [None, {"k": "a", "n": 1}, None, {"k": "a", "n": 1}]
    assert ask("POST", "/v1/totals/lookup", json={"keys": []}).json()["rows"] == []


def test_what_there_is(ask: Client) -> None:
    body = ask("GET", "/v1").json()
    keys = [{"name": "k", "type": "string"}]
    wanted = {"keys": keys, "states": ["n", "total"], "collections": []}
    assert body["operators"] == {"totals": wanted}
    assert ask("GET", "/healthz").json() == {"status": "ok"}


def test_the_description_names_what_can_be_asked(ask: Client) -> None:
    document = ask("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    get = document["paths"]["/v1/totals"]["get"]
    assert [p["name"] for p in get["parameters"]] == ["k", "_states"]
    assert "post" in document["paths"]["/v1/totals/lookup"]
    assert "security" not in document


def test_the_page_has_no_assets_from_elsewhere(ask: Client) -> None:
    answer = ask("GET", "/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in answer.text
    assert "https://" not in answer.text


REFUSED = [
    ("GET", "/v1/other?k=a", {}, 404, "there is no operator 'other'"),
    ("GET", "/v1/totals", {}, 400, "'k' is missing"),
    ("GET", "/v1/totals?k=a&z=1", {}, 400, "'z' is not part of it"),
    ("GET", "/v1/totals?k=a&k=b", {}, 400, "given twice"),
    ("GET", "/v1/totals?k=a&_states=mean", {}, 404, "no state 'mean'"),
    ("GET", "/v1/totals/lookup", {}, 405, "read-only"),
    ("POST", "/v1/totals?k=a", {}, 405, "read-only"),
    ("DELETE", "/v1/totals?k=a", {}, 405, "read-only"),
    ("GET", "/elsewhere", {}, 404, "see /docs"),
    ("POST", "/v1/totals/lookup", {"content": b"{"}, 400, "not JSON"),
    ("POST", "/v1/totals/lookup", {"content": b"\xff"}, 400, "not JSON"),
    ("POST", "/v1/totals/lookup", {"json": []}, 400, '"keys"'),
    ("POST", "/v1/totals/lookup", {"json": {"keys": ["a"]}}, 400, '"keys"'),
    ("POST", "/v1/totals/lookup", {"json": {"keys": [{"k": 1}]}}, 400, "and 1 is not"),
    ("POST", "/v1/totals/lookup", {"json": {"keys": [{"k": "a"}, {}]}}, 400, "'k' is missing"),
    ("POST", "/v1/totals/lookup", {"json": {"keys": [], "states": "n"}}, 400, '"states"'),
    ("POST", "/v1/totals/lookup", {"json": {"keys": [{}] * 10_001}}, 413, "at most 10000"),
    ("POST", "/v1/totals/lookup", {"content": b" " * (1 << 20) + b"{}"}, 413, "longer than"),
]


@pytest.mark.parametrize(("method", "path", "options", "status", "why"), REFUSED)
def test_refusals(
    ask: Client, method: str, path: str, options: dict[str, Any], status: int, why: str
) -> None:
    answer = ask(method, path, **options)
    assert answer.status_code == status
    assert why in answer.json()["error"]


def test_a_body_of_unknown_length_is_cut_off(lookups: Lookups) -> None:
    async def parts() -> Any:
        for _ in range(20):
            yield b" " * (1 << 16)

    answer = Client(App(lookups))("POST", "/v1/totals/lookup", content=parts())
    assert answer.status_code == 413


def test_without_the_token_nothing_is_told(lookups: Lookups) -> None:
    ask = Client(App(lookups, "s3cret"), "http://elsewhere:1")
    for path in ("/v1", "/v1/totals?k=a", "/v1/other?k=a", "/openapi.json", "/nowhere"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            answer = ask("GET", path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "token" in answer.json()["error"]
    right = {"Authorization": "Bearer s3cret"}
    assert ask("GET", "/v1/totals?k=a", headers=right).json()["row"]["n"] == 1
    assert ask("GET", "/openapi.json", headers=right).json()["security"] == [{"token": []}]
    assert ask("GET", "/docs").status_code == 200
    assert ask("GET", "/healthz").status_code == 200


def test_tokens_that_are_no_ascii_are_refused(lookups: Lookups) -> None:
    ask = Client(App(lookups, "s3cret"))
    for wrong in (b"Bearer s\xe9cret", "Bearer 鍵".encode(), b"\xff", "Bearer ²".encode()):
        answer = ask("GET", "/v1/totals?k=a", headers={"Authorization": wrong})
        assert answer.status_code == 401
    other = Client(App(lookups, "schlüssel"))
    right = {"Authorization": "Bearer schlüssel".encode()}
    assert other("GET", "/v1/totals?k=a", headers=right).status_code == 200
    assert other("GET", "/v1/totals?k=a").status_code == 401


KEY_TYPES: list[T.DataType] = [
    T.StringType(),
    T.LongType(),
    T.DoubleType(),
    T.BooleanType(),
    T.DateType(),
    T.TimestampType(),
    T.BinaryType(),
    T.DecimalType(10, 2),
    T.DayTimeIntervalType(),
    T.TimeType(6),
    T.ArrayType(T.LongType()),
    T.StructType([T.StructField("a", T.StringType()), T.StructField("b", T.DecimalType(5, 1))]),
]
ODD = [
    "",
    "²",
    "٣",
    "鍵",
    "\x00",
    "null",
    "[null]",
    "1",
    "9" * 5000,
    "1" + "0" * 400,
    "1e400",
    "sNaN",
    "[" * 3000,
    "{",
    '"\\ud800"',
    '{"a": "\\ud800"}',
    '{"a": "x", "b": "sNaN"}',
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00",
]


@pytest.mark.parametrize("key_type", KEY_TYPES, ids=str)
def test_odd_keys_are_not_found_or_refused(tmp_path: Path, key_type: T.DataType) -> None:
    counting = Counting(str(tmp_path), [Column("k", key_type)])
    counting.epoch({(None,): (1, 1)})
    ask = Client(App(Lookups(counting.url)))
    for text in ODD:
        answers = [ask("GET", "/v1/totals", params={"k": text})]
        for body in (json.dumps({"keys": [{"k": text}]}), f'{{"keys": [{{"k": {text}}}]}}'):
            answers.append(ask("POST", "/v1/totals/lookup", content=body.encode()))
        for answer in answers:
            assert answer.status_code in (200, 400), (text, answer.text)
    raw = ask("GET", "/v1/totals?k=%FF%FE&%FF=%FE")
    assert raw.status_code == 400


def test_text_and_times_that_python_lacks_are_shown() -> None:
    raw = pa.array([b"\xffa", None], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    years = pa.array([2**62, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    maps = pa.MapArray.from_arrays([0, 1, 2], text.fill_null("b"), years)
    structs = pa.StructArray.from_arrays([years, maps], ["t", "m"])
    lists = pa.ListArray.from_arrays([0, 2, 2], maps)
    batch = pa.RecordBatch.from_arrays(
        [text, years, maps, structs, lists], ["s", "t", "m", "st", "l"]
    )
    last = "9999-12-31T23:59:59.999999Z"
    bad = "\udcffa"
    assert rows_to_json(batch) == [
        {
            "s": bad,
            "t": last,
            "m": {bad: last},
            "st": {"t": last, "m": {bad: last}},
            "l": [{bad: last}, {"b": None}],
        },
        {"s": None, "t": None, "m": {"b": None}, "st": {"t": None, "m": {"b": None}}, "l": []},
    ]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8470", ""])
def test_without_a_token_other_names_are_refused(lookups: Lookups, host: str) -> None:
    answer = Client(App(lookups))("GET", "/v1/totals?k=a", headers={"Host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "[::1]:8470", "127.0.0.1"])
def test_loopback_names_are_answered(lookups: Lookups, host: str) -> None:
    answer = Client(App(lookups))("GET", "/v1/totals?k=a", headers={"Host": host})
    assert answer.status_code == 200


def test_before_the_first_epoch(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    ask = Client(App(Lookups(counting.url)))
    for path in ("/v1", "/v1/totals?k=a", "/openapi.json"):
        answer = ask("GET", path)
        assert answer.status_code == 503
        assert "no committed epoch yet" in answer.json()["error"]
    assert ask("GET", "/healthz").status_code == 503


def test_keys_in_a_url(tmp_path: Path) -> None:
    keys = [
        Column("i", T.IntegerType()),
        Column("b", T.BooleanType()),
        Column("day", T.DateType()),
        Column("at", T.TimestampType()),
        Column("d", T.DecimalType(9, 2)),
        Column("a", T.ArrayType(T.LongType())),
    ]
    counting = Counting(str(tmp_path), keys)
    at = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    key = (7, True, dt.date(2024, 5, 1), at, Decimal("1.50"), (1, 2))
    counting.epoch({key: (4, 4)})
    ask = Client(App(Lookups(counting.url)))
    text = {
        "i": "7",
        "b": "true",
        "day": "2024-05-01",
        "at": "2024-05-01T14:00:00+02:00",
        "d": "1.5",
        "a": "[1, 2]",
    }
    row = ask("GET", "/v1/totals", params=text).json()["row"]
    assert row["n"] == 4
    assert row["at"] == "2024-05-01T12:00:00Z"
    assert row["d"] == "1.50"
    # What an answer shows of a key finds it again.
    again = {name: row[name] for name in text}
    assert ask("POST", "/v1/totals/lookup", json={"keys": [again]}).json()["rows"][0] == row
    for name, wrong in {
        "i": "x",
        "b": "1",
        "day": "yesterday",
        "at": "noon",
        "d": "1.505",
        "a": "[1",
    }.items():
        answer = ask("GET", "/v1/totals", params={**text, name: wrong})
        assert answer.status_code == 400, name
        assert f"key column '{name}' is" in answer.json()["error"]
    assert ask("GET", "/v1/totals", params={**text, "i": str(2**40)}).status_code == 400


def test_values_that_json_lacks() -> None:
    columns = {
        "nan": pa.array([float("nan"), float("-inf"), 1.5]),
        "b": pa.array([b"\x00\xff", None, b""]),
        "m": pa.array([[("x", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
        "pairs": pa.array([[(1, "x")], None, []], pa.map_(pa.int64(), pa.string())),
        "s": pa.array([{"t": dt.time(1, 2)}, None, {"t": None}]),
        "l": pa.array([[Decimal("1.0")], None, []]),
        "gap": pa.array([dt.timedelta(seconds=1), None, None], pa.duration("us")),
    }
    shown = rows_to_json(pa.RecordBatch.from_pydict(columns))
    assert json.loads(json.dumps(shown, allow_nan=False)) == [
        {
            "nan": "NaN",
            "b": "AP8=",
            "m": {"x": 1.5},
            "pairs": [[1, "x"]],
            "s": {"t": "01:02:00"},
            "l": ["1.0"],
            "gap": 1_000_000,
        },
        dict.fromkeys(columns, None) | {"nan": "-Infinity"},
        {"nan": 1.5, "b": "", "m": {}, "pairs": [], "s": {"t": None}, "l": [], "gap": None},
    ]


def test_floats_by_name() -> None:
    field = pa.field("d", pa.float64())
    assert key_from_text("-Infinity", field).to_pylist() == [float("-inf")]
    assert keys_from_json(["1.5", 2, None], field).to_pylist() == [1.5, 2.0, None]


def test_limits_are_what_the_errors_say() -> None:
    assert (serving.BODY_BYTES, serving.MOST_KEYS) == (1 << 20, 10_000)
