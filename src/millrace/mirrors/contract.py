"""What a store must do to hold a mirror, and what is handed to it.

Invariant: a target's rows and its mark change together or not at all. So whoever reads both in one
go sees the state of the epoch that the mark names, and a mirror that was killed continues from
its mark.

A step names the mark that it starts from. A target whose mark is another one by then refuses the
step: somebody else has moved it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import pyarrow as pa

from millrace import fields
from millrace.errors import MalformedError, MirrorHistoryError, MirrorMovedError
from millrace.fields import Fields
from millrace.ids import Epoch, OperatorName

FORMAT = 1
"""Of marks, keys and values; a later one is refused."""

COPY, CHANGES, COMPARISON = "copy", "changes", "comparison"
"""How a step was made: all rows, what the log says was changed, or two epochs compared."""


@dataclass(frozen=True)
class Mark:
    """What a target shows: an operator of a query at an epoch."""

    query: str
    operator: OperatorName
    epoch: Epoch
    checksum: str
    """The manifest's: after a restore from a backup, the same number stands for another epoch."""
    committed_ms: int
    columns: tuple[tuple[str, str], ...]
    """Names and Arrow types; first those of the key."""
    keys: int
    """How many columns are the key's."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(data: str | bytes, where: str) -> Mark:
        """The mark in a target; refuses what no mirror has written."""
        try:
            body = Fields(fields.parse(data if isinstance(data, bytes) else data.encode()), "mark")
            body.integer("format", 1, FORMAT)
            columns = [fields.items(each, "a column", 2) for each in body.items("columns")]
            return Mark(
                body.text("query"),
                OperatorName(body.text("operator")),
                Epoch(body.integer("epoch", 1)),
                body.text("checksum"),
                body.integer("committed_ms", 0, fields.MOST_TIME_MS),
                tuple(
                    (fields.text(name, "a name"), fields.text(kind, "a type"))
                    for name, kind in columns
                ),
                body.integer("keys", 0, len(columns)),
            )
        except MalformedError as error:
            raise MirrorHistoryError(
                f"{where} has a mark that no mirror wrote ({error}), so the epoch of its rows is "
                "unknown. Remove its rows and its mark, and mirror again."
            ) from error


@dataclass(frozen=True)
class MirrorStep:
    """What takes a target from one mark to another."""

    kind: str
    before: Mark | None
    after: Mark
    schema: pa.Schema
    keys: tuple[str, ...]
    """The columns that identify a row."""
    upserts: Iterable[pa.RecordBatch]
    """Rows as they are now; in a copy, all rows there are."""
    deletes: Iterable[pa.RecordBatch]
    """The keys of rows that are gone; in a copy, nothing: what is not copied is gone."""

    @property
    def is_copy(self) -> bool:
        return self.kind == COPY

    @property
    def values(self) -> list[str]:
        """The columns that are not the key's."""
        return [name for name in self.schema.names if name not in self.keys]


class Target(Protocol):
    """A store that holds a mirror."""

    title: str
    """Its name in messages, without a password."""

    def mark(self) -> Mark | None:
        """What it shows; None if it is empty. Refuses rows that are not a mirror's."""

    def apply(self, step: MirrorStep) -> None:
        """Take the step, all of it or nothing."""

    def close(self) -> None: ...


def check_mark(title: str, found: Mark | None, step: MirrorStep) -> None:
    """Raise unless a target's mark is the one that a step starts from."""
    if found != step.before:
        there = "nothing" if found is None else f"epoch {found.epoch}"
        expected = "nothing" if step.before is None else f"epoch {step.before.epoch}"
        raise MirrorMovedError(
            f"{title} showed {expected} and shows {there} now: another process mirrors into it. "
            "Run one mirror for a target; nothing is lost, and the step was not taken."
        )


def pieces(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of a bounded size."""
    for batch in batches:
        for first in range(0, batch.num_rows, most):
            yield batch.slice(first, most)
