"""Which store a mirror is in, by the URL that a user gives."""

from __future__ import annotations

import importlib
from typing import cast

from millrace.errors import MissingPackageError, UnsupportedMirrorError
from millrace.mirrors.contract import Target

_KINDS = {
    "rocksdb": ("rocksdb", "RocksDbTarget", "rocksdict"),
    "redis": ("redis", "RedisTarget", "redis"),
    "rediss": ("redis", "RedisTarget", "redis"),
    "postgres": ("postgres", "PostgresTarget", "psycopg"),
    "postgresql": ("postgres", "PostgresTarget", "psycopg"),
}
"""Scheme -> module here, class, and the package that it needs."""


def open_target(url: str, name: str, *, read_only: bool = False) -> Target:
    """The target of a URL; `name` is that of its rows where a store has several tables."""
    scheme, _, rest = str(url).partition(":")
    if scheme not in _KINDS or not rest.strip("/"):
        # Without a password, if there is one.
        shown = str(url).rpartition("@")[2]
        raise UnsupportedMirrorError(
            "a mirror goes to redis://HOST, postgresql://HOST/DATABASE or rocksdb:PATH, not to "
            f"{shown!r}."
        )
    module, kind, package = _KINDS[scheme]
    try:
        found = importlib.import_module(f"millrace.mirrors.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingPackageError(
            f"a mirror in {scheme} needs the package {package}, which is not installed: "
            f"pip install 'millrace[{module}]'."
        ) from error
    return cast(Target, getattr(found, kind)(url, name, read_only=read_only))
