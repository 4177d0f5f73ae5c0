"""Spark's own logs in a location, as far as the state depends on them.

    spark/offsets/<batch>        what a batch reads; its last lines are one offset per source
    spark/commits/<batch>        the batch is done
    spark/sources/<n>/<id>       for file sources: the files of an offset

Beside each file there is a checksum file, `.<name>.crc`, in Hadoop's format. They are verified
here, before Spark is asked, and by `millrace check`. That a file is gone altogether is noticed here
too: Spark would build the batch again, of other rows, while the manifests say it was applied.
"""

from __future__ import annotations

import json
import re
import zlib

from millrace.errors import CorruptSparkLogError, MissingFileError
from millrace.log.layout import SPARK
from millrace.log.store import Store, replace

METADATA = f"{SPARK}/metadata"
OFFSETS = f"{SPARK}/offsets"
COMMITS = f"{SPARK}/commits"
SOURCES = f"{SPARK}/sources"

_MARK = b"crc\0"
_HEADER = 8
_SUM_EVERY = 512

_ADVICE = (
    "Continuing would lose rows or apply them twice. Restore the folder 'spark' from a backup of "
    "the same moment as the manifests, or start over at a new location. The state can still be "
    "read."
)


def last_committed(store: Store) -> int | None:
    """The last batch that Spark has committed."""
    return max(_ids(store, COMMITS), default=None)


def planned(store: Store) -> list[int]:
    """The batches that Spark has decided on and still knows, ascending."""
    return sorted(_ids(store, OFFSETS))


def is_planned(store: Store, batch: int) -> bool:
    """Whether Spark has decided on a batch."""
    return store.size(f"{OFFSETS}/{batch}") is not None


def offset_lines(store: Store, batch: int) -> list[str]:
    """What Spark wrote of a batch: a version, its times, then a line per source."""
    return store.read(f"{OFFSETS}/{batch}").decode(errors="replace").splitlines()


def is_interrupted(store: Store) -> bool:
    """Whether Spark has planned a batch that it did not commit."""
    done = last_committed(store)
    return max(planned(store), default=-1) > (-1 if done is None else done)


def rewrite(store: Store, path: str, data: bytes) -> None:
    """Give one of Spark's files a new content, with its checksums.

    A crash in between leaves a file without checksums, which is no damage.
    """
    sums = _sums_path(path)
    has_sums = store.size(sums) is not None
    store.delete(sums)
    replace(store, path, data)
    if has_sums:
        size = _MARK + _SUM_EVERY.to_bytes(4)
        replace(store, sums, size + _checksums(data, _SUM_EVERY))


def damaged_logs(store: Store) -> list[tuple[str, str]]:
    """Files that are not what Spark wrote, and what is wrong with each."""
    names = set(store.list(SPARK))
    found = []
    for path in sorted(names):
        sums = _sums_path(path)
        # Checksums, and files that another driver's Spark is still writing, begin with a dot.
        if sums not in names or path.rpartition("/")[2].startswith("."):
            continue
        try:
            whole = _is_whole(store.read(path), store.read(sums))
        except MissingFileError:
            # Spark forgets old batches while a query runs.
            continue
        if not whole:
            found.append((path, f"{store.url}/{path} does not match its checksum file {sums}."))
    return found


def _is_whole(data: bytes, sums: bytes) -> bool:
    """Hadoop's format: a mark, the number of bytes per checksum, then the CRC-32 checksums."""
    if len(sums) < _HEADER or not sums.startswith(_MARK):
        return False
    size = int.from_bytes(sums[len(_MARK) : _HEADER])
    if size < 1:
        return False
    # Hadoop writes no checksum for an empty file, Millrace's file manager one of nothing.
    found = sums[_HEADER:]
    return found == _checksums(data, size) or (not data and found == bytes(4))


def _checksums(data: bytes, size: int) -> bytes:
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(zlib.crc32(part).to_bytes(4) for part in parts)


def _sums_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def check_logs(store: Store, batch: int | None) -> None:
    """Raise unless Spark's logs are whole, and go as far as the manifests' last batch."""
    if store.local_path("") is not None:
        # Remote file systems have checksums of their own.
        for _, problem in damaged_logs(store):
            raise CorruptSparkLogError(f"{problem} {_ADVICE}")
    if batch is None:
        return
    if store.size(METADATA) is None:
        raise CorruptSparkLogError(f"{store.url}/{METADATA} is missing. {_ADVICE}")
    path = f"{OFFSETS}/{batch}"
    try:
        lines = offset_lines(store, batch)
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
    return [int(name) for name in names if _BATCH.fullmatch(name)]


_BATCH = re.compile(r"0|[1-9][0-9]{0,17}")


def _log_offset(line: str) -> int | None:
    """The offset of a file source; None for other sources."""
    try:
        offset = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = offset.get("logOffset") if isinstance(offset, dict) else None
    return found if type(found) is int else None
