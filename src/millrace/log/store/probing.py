"""Whether a store keeps the promise that commits rest on: of two creates of a file, one fails.

Tried for real when a query starts, with a short timeout: credentials, a bucket or an address that
are wrong show here, in seconds and not after minutes of retries.
"""

from __future__ import annotations

from millrace.clock import fresh_id
from millrace.errors import AlreadyExistsError, UnsafeStoreError
from millrace.log.store.contract import Store
from millrace.log.store.fsspec import FsspecStore
from millrace.log.store.objects import ObjectStore
from millrace.log.store.webhdfs import WebHdfsStore


def check_create(store: Store) -> None:
    """Raise if two drivers could both commit to a store. Local files are linked into place."""
    if store.local_path("") is not None:
        return
    what = f"the store of {store.url}"
    if isinstance(store, FsspecStore):
        store.check_kind()
        what = store.description
    if isinstance(store, ObjectStore | WebHdfsStore):
        store = store.with_short_timeout()
    probe = f"probe-{fresh_id()}.tmp"
    store.create(probe, b"first")
    try:
        store.create(probe, b"second")
    except AlreadyExistsError:
        return
    finally:
        store.delete(probe)
    raise UnsafeStoreError(
        f"{what} has overwritten a file that it should have created only if absent, so two "
        "queries could commit the same epoch. Use a store with conditional writes, or a newer "
        "version of this one."
    )
