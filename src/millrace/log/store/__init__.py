"""Where a location's files live: a directory, an object store, HDFS, or what fsspec knows.

`contract` says what a store does. Each other module is a kind of store, with one class that does
it; `open_store` chooses by the URL, and `check_create` tries at the start of a query whether the
store keeps the one promise that everything rests on.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from millrace import hooks
from millrace.clock import fresh_id
from millrace.errors import UnwritableLocationError
from millrace.log.store.contract import Store
from millrace.log.store.fsspec import FsspecStore
from millrace.log.store.local import LocalStore, local_root, sync_folder
from millrace.log.store.objects import ObjectStore
from millrace.log.store.probing import check_create
from millrace.log.store.webhdfs import WebHdfsStore

__all__ = [
    "FsspecStore",
    "LocalStore",
    "ObjectStore",
    "Store",
    "WebHdfsStore",
    "check_create",
    "open_store",
    "replace",
]


def open_store(url: str) -> Store:
    """The store for a path or URL."""
    if not url or not isinstance(url, str):
        raise UnwritableLocationError(
            f"{url!r} is not a location. Give a directory or a URL, like '/data/totals' or "
            "'s3://bucket/totals'."
        )
    scheme = urlsplit(url).scheme
    if scheme in ("", "file") or (len(scheme) == 1 and os.name == "nt"):
        return hooks.opened(LocalStore(local_root(url)))
    for kind in (ObjectStore, WebHdfsStore):
        if scheme in kind.SCHEMES:
            return hooks.opened(kind(url))
    return hooks.opened(FsspecStore(url))


def replace(store: Store, path: str, data: bytes) -> None:
    """Put a file in the place of another; a process that has the old one mapped keeps it."""
    local = store.local_path(path)
    if local is None:
        store.put(path, data)
        return
    draft = f"{path}.{fresh_id()}.tmp"
    store.create(draft, data)
    fresh = store.local_path(draft)
    assert fresh is not None
    os.replace(fresh, local)
    sync_folder(os.path.dirname(local))
