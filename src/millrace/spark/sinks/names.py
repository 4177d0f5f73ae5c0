"""The sink that `.to(name, **options)` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.errors import SinkError
from millrace.spark.sinks.contract import Sink
from millrace.spark.sinks.delta import Delta
from millrace.spark.sinks.files import Files
from millrace.spark.sinks.iceberg import Iceberg
from millrace.spark.sinks.kafka import Kafka
from millrace.spark.sinks.marked import MarkedSink
from millrace.spark.sinks.memory import Console, Memory, Noop
from millrace.spark.sinks.postgres import Postgres
from millrace.spark.sinks.redis import Redis

MARKED: dict[str, tuple[type[MarkedSink], dict[str, str], tuple[str, ...]]] = {
    "postgres": (
        Postgres,
        {"url": "the database, as in postgresql://user@host/name", "table": "the table's name"},
        ("mode", "key", "accept_gap"),
    ),
    "delta": (
        Delta,
        {"path": "the table's folder or URL"},
        ("mode", "key", "storage_options", "accept_gap"),
    ),
    "iceberg": (
        Iceberg,
        {"table": "the table's name with its namespace, as in shop.totals"},
        ("catalog", "accept_gap"),
    ),
    "redis": (
        Redis,
        {
            "url": "the server, as in redis://host:6379/0",
            "prefix": "what the names of all hashes begin with",
        },
        ("key", "accept_gap"),
    ),
}
"""Name -> the sink, the options it needs with their meaning, and those it may have."""


def check_targets(sinks: Sequence[Sink]) -> None:
    """Raise if two sinks of one query would write to the same place."""
    taken: set[tuple[str, str]] = set()
    for sink in sinks:
        if sink.target is None:
            continue
        if sink.target in taken:
            kind, place = sink.target
            raise SinkError(
                f"two sinks of the query write to the {kind} {place!r}. Give each its own."
            )
        taken.add(sink.target)


def make_sink(name: str, options: dict[str, Any]) -> Sink:
    """The sink for `.to(name, **options)`."""
    known = ("console", "kafka", "memory", "noop", *Files.FORMATS, *MARKED)
    if name == "noop":
        _no_more(name, options)
        return Noop()
    if name == "console":
        sink = Console(options.pop("rows", 20), options.pop("truncate", True))
        _no_more(name, options)
        return sink
    if name == "memory":
        table = _required(name, options, "name", 'the table\'s name, as in .to("memory", name="t")')
        _no_more(name, options)
        return Memory(table)
    if name == "kafka":
        return Kafka(options)
    if name in Files.FORMATS:
        path = _required(name, options, "path", "the directory to write to")
        return Files(name, path.rstrip("/"), options)
    if name in MARKED:
        return _marked(name, *MARKED[name], options)
    raise SinkError(
        f"there is no sink {name!r}. The built-in sinks are {', '.join(known)}; anything else can "
        "be written with for_each_batch(function)."
    )


def _marked(
    name: str,
    kind: type[MarkedSink],
    needed: dict[str, str],
    others: tuple[str, ...],
    options: dict[str, Any],
) -> Sink:
    given = {key: _required(name, options, key, meaning) for key, meaning in needed.items()}
    given |= {key: options.pop(key) for key in others if key in options}
    _no_more(name, options)
    return kind(**given)


def _required(sink: str, options: dict[str, Any], key: str, meaning: str) -> str:
    value = options.pop(key, None)
    if not isinstance(value, str) or not value:
        raise SinkError(f"the {sink} sink needs {key}=: {meaning}.")
    return value


def _no_more(sink: str, options: dict[str, Any]) -> None:
    if options:
        raise SinkError(f"the {sink} sink has no option {next(iter(options))!r}.")
