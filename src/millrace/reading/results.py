"""The results of views, stored in the location and read by name.

    views/top/000000000012.arrow         the result at epoch 12, an Arrow file

Each refresh writes a new file, so a reader always has a complete result of one epoch. The schema's
metadata has its SQL and its epoch. The last few results are kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pyarrow as pa

from millrace import fields
from millrace.errors import (
    AlreadyExistsError,
    CorruptViewError,
    MalformedError,
    MissingFileError,
    UnknownViewError,
)
from millrace.fields import Fields
from millrace.ids import Epoch
from millrace.log.layout import VIEWS
from millrace.log.pages import read_file
from millrace.log.store import Store

KEPT = 3
"""How many results of a view are kept."""
METADATA = b"millrace.view"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_RESULT = re.compile(r"([0-9]{12})\.arrow")


def is_view_name(name: str) -> bool:
    """Whether a view may have this name: it is part of a path and of SQL."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class ViewResult:
    """The result of a view at an epoch."""

    name: str
    epoch: Epoch
    sql: str
    rows: pa.Table


def write(store: Store, result: ViewResult) -> None:
    """Store a result, and forget old ones."""
    name, epoch, sql, rows = result.name, result.epoch, result.sql, result.rows
    noted = json.dumps({"name": name, "epoch": epoch, "sql": sql})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema.with_metadata({METADATA: noted.encode()})) as writer:
        writer.write_table(rows.replace_schema_metadata())
    try:
        store.create(_path(name, epoch), sink.getvalue().to_pybytes())
    except AlreadyExistsError:
        # Another driver, or this one before a restart: the same epoch gives the same result.
        return
    for old in epochs_of(store, name)[:-KEPT]:
        store.delete(_path(name, old))


def read(store: Store, name: str, at_most: Epoch | None = None) -> ViewResult:
    """The newest result of a view, or the newest up to an epoch."""
    while True:
        found = [e for e in epochs_of(store, name) if at_most is None or e <= at_most]
        if not found:
            known = ", ".join(map(repr, names(store))) or "none"
            when = "" if at_most is None else f" up to epoch {at_most}"
            raise UnknownViewError(
                f"{store.url} has no result of a view {name!r}{when}; its views are: {known}. "
                "query.view(name, sql) makes one."
            )
        try:
            data = store.read(_path(name, found[-1]))
        except MissingFileError:
            # Replaced by a newer one between listing and reading.
            continue
        try:
            return _decoded(data, name, found[-1])
        except MalformedError as error:
            raise CorruptViewError(
                f"{store.url}/{_path(name, found[-1])} is not the result of view {name!r} at epoch "
                f"{found[-1]}: {error}. Delete it; the running query writes the next one."
            ) from error


def _decoded(data: bytes, name: str, epoch: Epoch) -> ViewResult:
    rows = read_file(pa.py_buffer(data))
    noted = Fields(fields.parse((rows.schema.metadata or {}).get(METADATA, b"")), "its metadata")
    if (noted.text("name"), noted.integer("epoch")) != (name, epoch):
        raise MalformedError("its metadata names another one")
    return ViewResult(name, epoch, noted.text("sql"), rows.replace_schema_metadata())


def names(store: Store) -> list[str]:
    """The views that have a result; folders with other names are not views."""
    folders = {path.split("/")[1] for path in store.list(VIEWS) if path.count("/") == 2}
    return sorted(filter(is_view_name, folders))


def epochs_of(store: Store, name: str) -> list[Epoch]:
    """The epochs of a view's results, ascending."""
    if not is_view_name(name):
        return []
    files = (_RESULT.fullmatch(path.rsplit("/", 1)[-1]) for path in store.list(_folder(name)))
    return sorted(Epoch(int(file[1])) for file in files if file)


def _folder(name: str) -> str:
    return f"{VIEWS}/{name}"


def _path(name: str, epoch: Epoch) -> str:
    return f"{_folder(name)}/{epoch:012d}.arrow"
