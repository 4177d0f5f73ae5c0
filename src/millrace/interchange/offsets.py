"""Carry over Spark's own bookkeeping: which offsets of the sources a state belongs to.

State without its offsets would see rows twice or never, so they travel together: Spark's offset and
commit logs, and what its sources keep. The query gets a new id at the new place.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from millrace import clock
from millrace.errors import MissingFileError, MissingOffsetsError
from millrace.log.store import Store

FOLDERS = ("offsets", "commits", "sources")
METADATA = "metadata"

Files = dict[str, bytes]


def read_offsets(store: Store, root: str, batch_id: int) -> Files:
    """The files of a Spark checkpoint that continue after a batch, by their path below it."""
    before = _listed(store, root)
    prefix = f"{root}/" if root else ""
    try:
        files = {path: store.read(prefix + path) for path in before}
    except MissingFileError as error:
        raise _running(store, root) from error
    if _listed(store, root) != before:
        raise _running(store, root)
    for log in ("offsets", "commits"):
        if f"{log}/{batch_id}" not in files:
            raise MissingOffsetsError(
                f"{store.url}/{prefix}{log} has no batch {batch_id}, which the state belongs to, "
                "so a query could not continue there. Choose the last committed epoch, or leave "
                "the offsets out with --fresh-source to start the sources over."
            )
    later = [b for b in _batches(files, "commits") if b > batch_id]
    if later:
        raise MissingOffsetsError(
            f"{store.url}/{prefix}commits continues to batch {max(later)}, and the state is of "
            f"batch {batch_id}: sources forget what they have handed over. Choose the last epoch, "
            "or leave the offsets out with --fresh-source."
        )
    files[METADATA] = json.dumps({"id": str(uuid.UUID(clock.fresh_id()))}).encode()
    return files


def _listed(store: Store, root: str) -> list[str]:
    prefix = f"{root}/" if root else ""
    found = [p[len(prefix) :] for folder in FOLDERS for p in store.list(prefix + folder)]
    return sorted(p for p in found if not _is_noise(p.rsplit("/", 1)[-1]))


def _is_noise(name: str) -> bool:
    """Checksums and temporary files of Hadoop's file systems."""
    return name.startswith(".") or name.endswith(".tmp")


def _running(store: Store, root: str) -> MissingOffsetsError:
    return MissingOffsetsError(
        f"the offsets in {store.url}/{root} change while they are read. Stop the query first."
    )


def _batches(files: Files, log: str) -> list[int]:
    names = (path.split("/", 1) for path in files)
    return [
        int(name) for folder, name in names if folder == log and name.isascii() and name.isdigit()
    ]


def with_more_sources(files: Files, count: int) -> Files:
    """The same offsets for a query with further sources, which have not started yet."""
    if not count:
        return files
    return {
        path: data + b"\n-" * count if path.startswith("offsets/") else data
        for path, data in files.items()
    }


def write_files(files: Files, put: Callable[[str, bytes], None]) -> None:
    for path, data in sorted(files.items()):
        put(path, data)
