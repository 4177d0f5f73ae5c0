"""A mirror in a RocksDB database, a folder of its own.

    column family `default`     `millrace.mirror` -> {"rows": ROWS, "mark": {...}}
    column family ROWS          key -> row, as in `mirrors.encoding`

A step's changes and the mark are one write batch. A copy fills a new column family, and the mark
that names it makes it the mirror's; so a copy of any size appears at once. What a killed copy left
behind is dropped when the database is opened again.

RocksDB lets one process write. Others open the database read-only or as a secondary.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from rocksdict import AccessType, Options, Rdict, WriteBatch, WriteOptions

from millrace import clock, fields, hooks
from millrace.errors import (
    ForeignMirrorError,
    MalformedError,
    MirrorHistoryError,
    MirrorTargetError,
    MirrorUnreachableError,
)
from millrace.fields import Fields
from millrace.mirrors.contract import Mark, MirrorStep, check_mark, pieces
from millrace.mirrors.encoding import keys_of, values_of

MARK = b"millrace.mirror"
ROWS = "rows."
"""How the column families begin that have rows."""
DEFAULT = "default"
TOGETHER = 10_000
"""Rows of a copy that are written at once."""


class RocksDbTarget:
    """A mirror in a RocksDB database."""

    def __init__(self, url: str, name: str, *, read_only: bool = False) -> None:
        self._path = os.path.abspath(url.partition(":")[2].removeprefix("//"))
        self.title = f"rocksdb:{self._path}"
        self._families: dict[str, Rdict] = {}
        self._db = self._opened(read_only)
        try:
            if not read_only:
                self._drop_leftovers()
        except BaseException:
            self.close()
            raise

    def _opened(self, read_only: bool) -> Rdict | None:
        """The database; None if there is none and none is to be made."""
        exists = os.path.exists(os.path.join(self._path, "CURRENT"))
        if not exists and os.path.isdir(self._path) and os.listdir(self._path):
            raise ForeignMirrorError(
                f"{self.title} holds files that are not a database. Give an empty folder."
            )
        if not exists and read_only:
            return None
        with self._explained():
            names = Rdict.list_cf(self._path) if exists else [DEFAULT]
            families = {name: _options() for name in names if name != DEFAULT}
            access = AccessType.read_only(False) if read_only else AccessType.read_write()
            options = _options()
            options.create_if_missing(not read_only)
            opened = Rdict(self._path, options, families, access)
            self._families = {name: opened.get_column_family(name) for name in families}
            return opened

    def _drop_leftovers(self) -> None:
        """Forget what a killed copy left behind, and what the last one replaced."""
        found = self._found()
        keep = None if found is None else found[0]
        with self._explained():
            for name in [n for n in self._families if n != keep]:
                self._families.pop(name).close()
                self._writable.drop_column_family(name)

    @property
    def _writable(self) -> Rdict:
        assert self._db is not None
        return self._db

    def _found(self) -> tuple[str, Mark] | None:
        """The column family with the rows, and the mark."""
        if self._db is None:
            return None
        with self._explained():
            data = self._db.get(MARK)
            others = [name for name in self._families if not name.startswith(ROWS)]
            is_foreign = bool(others) or next(self._db.keys(), MARK) != MARK
        if data is None:
            if is_foreign:
                raise ForeignMirrorError(
                    f"{self.title} is a database that is not a mirror. Give an empty folder."
                )
            return None
        try:
            body = Fields(fields.parse(data), "the mark")
            rows, mark = body.text("rows"), json.dumps(body.members("mark"))
        except MalformedError as error:
            raise MirrorHistoryError(
                f"{self.title} has a mark that no mirror wrote: {error}. Remove the folder, and "
                "mirror again."
            ) from error
        if rows not in self._families:
            raise MirrorHistoryError(
                f"{self.title} lacks the rows that its mark names, {rows!r}. Remove the folder, "
                "and mirror again."
            )
        return rows, Mark.from_json(mark, self.title)

    def mark(self) -> Mark | None:
        found = self._found()
        return None if found is None else found[1]

    def apply(self, step: MirrorStep) -> None:
        found = self._found()
        check_mark(self.title, None if found is None else found[1], step)
        if step.is_copy or found is None:
            self._copy(step)
        else:
            self._change(step, found[0])

    def _copy(self, step: MirrorStep) -> None:
        rows = f"{ROWS}{clock.fresh_id()}"
        with self._explained():
            self._families[rows] = self._writable.create_column_family(rows, _options())
            handle = self._writable.get_column_family_handle(rows)
            for batch in pieces(step.upserts, TOGETHER):
                written = WriteBatch(raw_mode=True)
                values = values_of(batch, step.values)
                for key, value in zip(keys_of(batch, step.keys), values, strict=True):
                    written.put(key, value, handle)
                self._writable.write(written)
                hooks.reach(hooks.STAGED_STEP, step.after.epoch)
            self._commit(WriteBatch(raw_mode=True), rows, step.after)
        self._drop_leftovers()

    def _change(self, step: MirrorStep, rows: str) -> None:
        with self._explained():
            handle = self._writable.get_column_family_handle(rows)
            written = WriteBatch(raw_mode=True)
            for batch in step.deletes:
                for key in keys_of(batch, step.keys):
                    written.delete(key, handle)
            for batch in step.upserts:
                values = values_of(batch, step.values)
                for key, value in zip(keys_of(batch, step.keys), values, strict=True):
                    written.put(key, value, handle)
            hooks.reach(hooks.STAGED_STEP, step.after.epoch)
            self._commit(written, rows, step.after)

    def _commit(self, written: WriteBatch, rows: str, mark: Mark) -> None:
        written.put(MARK, json.dumps({"rows": rows, "mark": json.loads(mark.to_json())}).encode())
        durable = WriteOptions()
        # With the log synced, what was written before this is durable as well.
        durable.sync = True
        self._writable.write(written, durable)

    def rows(self) -> dict[bytes, bytes]:
        """All rows, for programs that have no RocksDB of their own."""
        found = self._found()
        if found is None:
            return {}
        items: Any = self._families[found[0]].items()
        return dict(items)

    def close(self) -> None:
        for family in self._families.values():
            family.close()
        self._families.clear()
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """RocksDB's errors, which have no class of their own, as Millrace's."""
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:
                raise
            if "lock" in str(error).lower():
                raise MirrorUnreachableError(
                    f"{self.title} is open in another process, and RocksDB lets one write. Stop "
                    f"the other one, or mirror to another folder. {error}"
                ) from error
            raise MirrorTargetError(f"{self.title} failed: {error}") from error


def _options() -> Options:
    return Options(raw_mode=True)
