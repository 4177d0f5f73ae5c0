"""The sink that `.to(name, **options)` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.errors import SinkError
from millrace.spark.sinks.contract import Sink
from millrace.spark.sinks.files import Files
from millrace.spark.sinks.kafka import Kafka
from millrace.spark.sinks.memory import Console, Memory, Noop


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
    known = ("console", "kafka", "memory", "noop", *Files.FORMATS)
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
    raise SinkError(
        f"there is no sink {name!r}. The built-in sinks are {', '.join(known)}; anything else can "
        "be written with for_each_batch(function)."
    )


def _required(sink: str, options: dict[str, Any], key: str, meaning: str) -> str:
    value = options.pop(key, None)
    if not isinstance(value, str) or not value:
        raise SinkError(f"the {sink} sink needs {key}=: {meaning}.")
    return value


def _no_more(sink: str, options: dict[str, Any]) -> None:
    if options:
        raise SinkError(f"the {sink} sink has no option {next(iter(options))!r}.")
