"""Sinks that cannot be: found before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import SinkError
from millrace.spark.sinks import Console, Files, ForEachBatch, Kafka, Memory, Noop, make_sink

TO_KAFKA = {"topic": "t", "servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("noop", {}, Noop),
        ("console", {}, Console),
        ("console", {"rows": 5, "truncate": False}, Console),
        ("memory", {"name": "t"}, Memory),
        ("parquet", {"path": "/tmp/x"}, Files),
        ("orc", {"path": "/tmp/x", "compression": "zlib"}, Files),
        ("json", {"path": "/tmp/x"}, Files),
        ("csv", {"path": "/tmp/x", "header": True}, Files),
        ("kafka", {**TO_KAFKA}, Kafka),
        ("kafka", {**TO_KAFKA, "key": "k", "headers": {"n": "n"}, "kafka.linger.ms": 20}, Kafka),
    ],
)
def test_known_sinks(name: str, options: dict[str, Any], kind: type) -> None:
    assert isinstance(make_sink(name, options), kind)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "kinesis",
            {},
            r"no sink 'kinesis'. The built-in sinks are console, kafka, memory.*for_each_batch",
        ),
        ("kafka", {}, r"the kafka sink needs topic="),
        ("kafka", {"topic": "t"}, r"the kafka sink needs servers="),
        ("kafka", {**TO_KAFKA, "topic": "a/b"}, r"topic='a/b' is no name of a topic"),
        ("kafka", {**TO_KAFKA, "keys": "k"}, r"no option 'keys'. It has topic, servers, key"),
        ("kafka", {**TO_KAFKA, "linger.ms": 5}, r"no option 'linger.ms'.*begin with 'kafka.'"),
        ("kafka", {**TO_KAFKA, "kafka.acks": "1"}, r"sets 'kafka.acks' itself"),
        ("kafka", {**TO_KAFKA, "key": 3}, r"key=3: it is a column, or a column's name"),
        ("kafka", {**TO_KAFKA, "headers": ["n"]}, r"headers=\['n'\]: it is a dict"),
        ("kafka", {**TO_KAFKA, "headers": {"n": None}}, r"headers=.*: it is a dict"),
        ("kafka", {**TO_KAFKA, "writers": 0}, r"writers=0: it is a whole number from 1"),
        ("kafka", {**TO_KAFKA, "exactly_once": "no"}, r"exactly_once='no': it is True or False"),
        (
            "kafka",
            {**TO_KAFKA, "writers": 2, "exactly_once": False},
            r"writers= is of no use with exactly_once=False",
        ),
        ("", {}, r"no sink ''"),
        ("Parquet", {"path": "x"}, r"no sink 'Parquet'"),
        ("parquet", {}, r"the parquet sink needs path=: the directory"),
        ("json", {"path": ""}, r"the json sink needs path="),
        ("csv", {"path": 5}, r"the csv sink needs path="),
        ("memory", {}, r"the memory sink needs name=.*\.to\(\"memory\", name=\"t\"\)"),
        ("memory", {"name": "t", "path": "x"}, r"the memory sink has no option 'path'"),
        ("noop", {"path": "x"}, r"the noop sink has no option 'path'"),
        ("console", {"rows": 1, "width": 2}, r"the console sink has no option 'width'"),
    ],
)
def test_sinks_that_cannot_be(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        make_sink(name, options)


@pytest.mark.parametrize("function", [None, "print", 5])
def test_for_each_batch_takes_a_function(function: Any) -> None:
    with pytest.raises(SinkError, match=r"takes a function of \(df, batch_id\)"):
        ForEachBatch(function)
