"""A bucket of S3, Google Cloud Storage, Azure, or what speaks their protocols, through obstore.

Credentials, region and endpoint come from the environment, under the names that the services' own
tools use: `mr.session` hands them to the executors.

`create` is a conditional put. obstore repeats a request that got no answer only if that is safe,
and a create is not: if the first one has arrived, the second is refused. So it is repeated here,
and a file that is there after a lost answer, with this very content, is taken for this one's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as refused

from millrace.errors import (
    AlreadyExistsError,
    MillraceError,
    MissingFileError,
    StoreError,
    UnsafeStoreError,
    UnwritableLocationError,
)
from millrace.log.store.retries import SHORT, Retries, configured_retries

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

SETTINGS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"),
    *("AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
    *("AWS_SKIP_SIGNATURE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
    *("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
    *("AZURE_STORAGE_TOKEN", "AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"),
    "AZURE_ALLOW_HTTP",
)
"""Variables that say how to reach a bucket, the same in every process of a query."""

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_DENIED = ("401 Unauthorized", "403 Forbidden")
_BEYOND_END = "416 Range Not Satisfiable"
_NOT_IMPLEMENTED = "501 Not Implemented"
_CONFLICT = "409 Conflict"


class ObjectStore:
    """Objects of a bucket below a prefix."""

    SCHEMES: ClassVar = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")

    def __init__(self, url: str, waits: Retries | None = None) -> None:
        parts = urlsplit(url)
        if parts.query or parts.fragment:
            raise UnwritableLocationError(
                f"{url} has options behind its path. Give the bucket and the folder only, like "
                "'s3://bucket/totals'; endpoint, region and credentials come from the environment "
                "(AWS_ENDPOINT_URL, AWS_REGION, ...)."
            )
        self._url = url.rstrip("/")
        self._waits = waits or configured_retries()
        with self._explained("open", ""):
            self._client = _client(self._url, self._waits, repeats=True)
            self._once = _client(self._url, self._waits, repeats=False)

    @property
    def url(self) -> str:
        return self._url

    def with_short_timeout(self) -> ObjectStore:
        """The same store, for someone who waits seconds only."""
        return ObjectStore(self._url, SHORT)

    def create(self, path: str, data: bytes) -> None:
        unsure = False
        failure: Exception | None = None
        for _ in self._waits.tries():
            try:
                with self._explained("create", path):
                    obstore.put(self._once, path, data, mode="create")
                return
            except AlreadyExistsError as error:
                found = self._found(path)
                if found == data and unsure:
                    return
                if found is not None or _CONFLICT not in str(error.__cause__):
                    raise
                # Two requests met, and the other one came to nothing.
                failure = error
            except StoreError as error:
                failure, unsure = error, True
        raise StoreError(
            f"cannot create {self._url}/{path}: no answer for {self._waits.total:g} s. The last "
            f"problem: {failure}"
        ) from failure

    def _found(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except MissingFileError:
            return None

    def put(self, path: str, data: memoryview | bytes) -> None:
        with self._explained("write", path):
            # Arrow's buffers are of signed bytes, which obstore would take for a list of numbers.
            obstore.put(self._client, path, memoryview(data).cast("B"))

    def read(self, path: str) -> bytes:
        with self._reading(path):
            return obstore.get(self._client, path).bytes().to_bytes()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        try:
            with self._reading(path):
                return obstore.get_range(self._client, path, start=offset, length=length).to_bytes()
        except StoreError as error:
            if _BEYOND_END in str(error.__cause__):
                return b""
            raise

    def size(self, path: str) -> int | None:
        with self._explained("look at", path):
            try:
                return obstore.head(self._client, path)["size"]
            except FileNotFoundError:
                return None

    def list(self, folder: str) -> list[str]:
        with self._explained("list", folder):
            found = obstore.list(self._client, folder or None)
            return sorted(each["path"] for chunk in found for each in chunk)

    def delete(self, path: str) -> None:
        with self._explained("delete", path):
            try:
                obstore.delete(self._client, path)
            except FileNotFoundError as error:
                if _is_without_bucket(error):
                    raise

    def local_path(self, path: str) -> str | None:
        return None

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        with self._explained("read", path):
            try:
                yield
            except FileNotFoundError as error:
                if _is_without_bucket(error):
                    raise
                raise MissingFileError(f"{self._url}/{path} is missing") from error

    @contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        """Turn obstore's errors into those that say what to do."""
        where = f"{self._url}/{path}".rstrip("/")
        try:
            yield
        except refused.AlreadyExistsError as error:
            raise AlreadyExistsError(f"{where} exists already") from error
        except (refused.BaseError, FileNotFoundError, ValueError) as error:
            raise _explanation(verb, where, error) from error


def _explanation(verb: str, where: str, error: Exception) -> MillraceError:
    """Of a list, obstore says only in words what is wrong."""
    said = _said(error)
    denied = isinstance(error, refused.PermissionDeniedError | refused.UnauthenticatedError)
    if denied or any(status in said for status in _DENIED):
        return UnwritableLocationError(
            f"cannot {verb} {where}: the store refuses these credentials. Check those in the "
            "environment of this process (AWS_..., GOOGLE_..., AZURE_...) and what they may do: "
            f"reading, writing, listing and deleting. It said: {said}"
        )
    if isinstance(error, FileNotFoundError) or _is_without_bucket(error):
        return UnwritableLocationError(
            f"cannot {verb} {where}: there is no such bucket. Create it, or correct the URL or the "
            f"endpoint. The store said: {said}"
        )
    if isinstance(error, refused.NotSupportedError) or _NOT_IMPLEMENTED in said:
        return UnsafeStoreError(
            f"cannot {verb} {where}: the store does not implement it. Millrace needs conditional "
            f"writes (If-None-Match), reads of ranges and lists. It said: {said}"
        )
    return StoreError(
        f"cannot {verb} {where}: {said}. Check the network, the endpoint and the credentials in "
        "the environment. Nothing is lost: a query continues from the last committed epoch when it "
        "is started again."
    )


def _client(url: str, waits: Retries, *, repeats: bool) -> Client:
    return obstore.store.from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=waits.request),
            "connect_timeout": timedelta(seconds=waits.connect),
            "allow_http": _allows_http(),
        },
        # The time is the limit, whatever the number.
        retry_config={
            "max_retries": 10_000 if repeats else 0,
            "retry_timeout": timedelta(seconds=waits.total if repeats else 0),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        },
    )


def _allows_http() -> bool:
    """Whether somebody has asked for a connection without TLS, by a switch or by a URL."""
    named = [value for name in SETTINGS if (value := os.environ.get(name)) is not None]
    switches = ("AWS_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
    return any(value.startswith("http://") for value in named) or any(
        os.environ.get(name, "").lower() in ("1", "true") for name in switches
    )


def _is_without_bucket(error: Exception) -> bool:
    return any(sign in str(error) for sign in _NO_BUCKET)


def _said(error: Exception) -> str:
    """The part of an obstore message that is for people, without markup."""
    text = str(error).partition("\n\nDebug source")[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text)).strip()[:400]
