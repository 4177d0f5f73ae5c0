"""Spark's own logs in a location, as far as the state depends on them.

    spark/offsets/<batch>        what a batch reads; its last lines are one offset per source
    spark/commits/<batch>        the batch is done
    spark/sources/<n>/<id>       for file sources: the files of an offset; `<id>.compact` has all so far

What a byte in them says is verified by Hadoop, with the checksum file beside each. That a file is
gone altogether is noticed here: Spark would make the batch anew, with other rows, while the
manifests say that it was applied.
"""

from __future__ import annotations

import json

from millrace.errors import CorruptSparkLogError, MissingFileError
from millrace.log.store import Store

FOLDER = "spark"
OFFSETS = f"{FOLDER}/offsets"
COMMITS = f"{FOLDER}/commits"
SOURCES = f"{FOLDER}/sources"

_ADVICE = (
    "Going on would lose rows or apply them twice. Restore the folder 'spark' from a backup of the "
    "same moment as the manifests, or start over at a new location; the state can still be read."
)


def last_committed(store: Store) -> int | None:
    """The last batch that Spark calls done."""
    return max(_ids(store, COMMITS), default=None)


def check_logs(store: Store, batch: int | None) -> None:
    """Raise unless Spark's logs go as far as the last batch that the manifests have."""
    if batch is None:
        return
    path = f"{OFFSETS}/{batch}"
    try:
        lines = store.read(path).decode(errors="replace").splitlines()
    except MissingFileError as error:
        raise CorruptSparkLogError(
            f"{store.url}/{path} is missing: Spark no longer knows what batch {batch} read, which "
            f"the manifests have. {_ADVICE}"
        ) from error
    for source, line in enumerate(lines[2:]):
        wanted = _log_offset(line)
        if wanted is None:
            continue
        newest = max(_ids(store, f"{SOURCES}/{source}"), default=-1)
        if newest < wanted:
            raise CorruptSparkLogError(
                f"{store.url}/{SOURCES}/{source}/{wanted} is missing: Spark no longer knows which "
                f"files batch {batch} read. {_ADVICE}"
            )


def _ids(store: Store, folder: str) -> list[int]:
    names = (path.rsplit("/", 1)[-1].removesuffix(".compact") for path in store.list(folder))
    return [int(name) for name in names if name.isdigit()]


def _log_offset(line: str) -> int | None:
    """The offset of a file source; None for other sources."""
    try:
        offset = json.loads(line)
    except ValueError:
        return None
    found = offset.get("logOffset") if isinstance(offset, dict) else None
    return found if isinstance(found, int) else None
