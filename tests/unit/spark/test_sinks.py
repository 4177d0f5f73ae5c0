"""Sinks that cannot be: found before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.errors import SinkError
from millrace.spark.sinks import Console, Files, ForEachBatch, Memory, Noop, make_sink


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
    ],
)
def test_known_sinks(name: str, options: dict[str, Any], kind: type) -> None:
    assert isinstance(make_sink(name, options), kind)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "kafka",
            {},
            r"no sink 'kafka'. The built-in sinks are console, memory, noop.*for_each_batch",
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
