"""A folder of HDFS, over WebHDFS: the REST interface of every NameNode.

HDFS can create a file only if it is absent, but the name appears before the content does: a reader
could see half a manifest, and a writer that dies leaves an empty one. So `create` writes a file
beside its place and renames it. A rename is one step of the NameNode's, and refuses a name that is
taken.

Files are written in two steps, as WebHDFS has it: the NameNode names a DataNode, which takes the
bytes. Users are told apart by name only; a cluster that demands Kerberos refuses these requests.
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from millrace.clock import fresh_id
from millrace.errors import (
    AlreadyExistsError,
    MissingFileError,
    StoreError,
    UnwritableLocationError,
)
from millrace.log.store.retries import SHORT, Retries, configured_retries

USER = "HADOOP_USER_NAME"
"""Who asks, unless the URL says so: webhdfs://user@host:9870/folder."""

_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}
_LATER = ("StandbyException", "RetriableException", "SafeModeException")
"""What a NameNode says that is starting or not the active one."""


class WebHdfsStore:
    """Files of HDFS below a folder."""

    SCHEMES: ClassVar = ("webhdfs", "swebhdfs", "hdfs")

    def __init__(self, url: str, waits: Retries | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme == "hdfs":
            raise UnwritableLocationError(
                f"{url}: Millrace reaches HDFS over HTTP. Give the NameNode's web address instead, "
                f"like 'webhdfs://{parts.hostname or 'namenode'}:{_PORTS['webhdfs']}"
                f"{parts.path or '/folder'}', or 'swebhdfs://' with TLS."
            )
        if not parts.hostname or parts.query or parts.fragment or not parts.path.strip("/"):
            raise UnwritableLocationError(
                f"{url} is not a folder of HDFS. Give host, port and folder, like "
                "'webhdfs://namenode:9870/streams/totals'."
            )
        self._url = url.rstrip("/")
        self._root = parts.path.rstrip("/")
        self._is_secure = parts.scheme == "swebhdfs"
        self._node = f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"
        self._user = parts.username or os.environ.get(USER) or getpass.getuser()
        self._waits = waits or configured_retries()
        self._open = threading.local()

    @property
    def url(self) -> str:
        return self._url

    def with_short_timeout(self) -> WebHdfsStore:
        """The same store, for someone who waits seconds only."""
        return WebHdfsStore(self._url, SHORT)

    def create(self, path: str, data: bytes) -> None:
        draft = f"{path}.{fresh_id()}.tmp"
        self.put(draft, data)
        target = {"destination": f"{self._root}/{path}"}
        status, answer, tries = self._ask("PUT", draft, "RENAME", target)
        if status == 200 and answer["boolean"]:
            return
        # After a lost answer, the draft may have been renamed.
        if tries > 1 and self.size(draft) is None and self._found(path) == data:
            return
        self.delete(draft)
        if self.size(path) is not None:
            raise AlreadyExistsError(f"{self._url}/{path} exists already")
        self._refuse("create", path, status, answer)

    def _found(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except MissingFileError:
            return None

    def put(self, path: str, data: memoryview | bytes) -> None:
        options = {"overwrite": "true", "noredirect": "true"}
        status, answer, _ = self._ask("PUT", path, "CREATE", options, bytes(data))
        if status != 201:
            self._refuse("write", path, status, answer)

    def read(self, path: str) -> bytes:
        return self._read(path, {})

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        # HDFS refuses a range that begins past the end.
        size = self.size(path)
        if size is None:
            raise MissingFileError(f"{self._url}/{path} is missing")
        length = min(length, size - offset)
        if length <= 0:
            return b""
        return self._read(path, {"offset": str(offset), "length": str(length)})

    def _read(self, path: str, options: dict[str, str]) -> bytes:
        status, answer, _ = self._ask("GET", path, "OPEN", {**options, "noredirect": "true"})
        if status == 404:
            raise MissingFileError(f"{self._url}/{path} is missing")
        if status != 200:
            self._refuse("read", path, status, answer)
        found: bytes = answer["bytes"]
        return found

    def size(self, path: str) -> int | None:
        status, answer, _ = self._ask("GET", path, "GETFILESTATUS")
        if status == 404:
            return None
        if status != 200:
            self._refuse("look at", path, status, answer)
        found = answer["FileStatus"]
        return int(found["length"]) if found["type"] == "FILE" else None

    def list(self, folder: str) -> list[str]:
        status, answer, _ = self._ask("GET", folder, "LISTSTATUS")
        if status == 404:
            return []
        if status != 200:
            self._refuse("list", folder, status, answer)
        found = []
        for each in answer["FileStatuses"]["FileStatus"]:
            path = f"{folder}/{each['pathSuffix']}".strip("/")
            found += self.list(path) if each["type"] == "DIRECTORY" else [path]
        return sorted(found)

    def delete(self, path: str) -> None:
        status, answer, _ = self._ask("DELETE", path, "DELETE")
        if status not in (200, 404):
            self._refuse("delete", path, status, answer)

    def local_path(self, path: str) -> str | None:
        return None

    def _ask(
        self,
        method: str,
        path: str,
        operation: str,
        options: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> tuple[int, dict[str, Any], int]:
        """Status and answer of a request that is repeated while nobody answers, and the tries."""
        fields = {"op": operation, "user.name": self._user, **(options or {})}
        full = f"{self._root}/{path}".rstrip("/")
        target = f"/webhdfs/v1{quote(full)}?{urlencode(fields)}"
        problem: object = None
        for number in self._waits.tries():
            try:
                status, answer = self._send(method, target, data)
            except (OSError, http.client.HTTPException) as error:
                self._close()
                problem = str(error) or type(error).__name__
                continue
            said = answer.get("RemoteException", {})
            if status < 500 and said.get("exception") not in _LATER:
                return status, answer, number + 1
            problem = said.get("message", f"status {status}")
        raise StoreError(
            f"cannot reach {self._url}/{path}: no answer for {self._waits.total:g} s. The last "
            f"problem: {problem}. Check that the NameNode's web address is {self._node}, and the "
            "network. Nothing is lost: a query continues from the last committed epoch when it is "
            "started again."
        )

    def _send(self, method: str, target: str, data: bytes | None) -> tuple[int, dict[str, Any]]:
        """One request to the NameNode, and to the DataNode that it names."""
        connection = getattr(self._open, "connection", None)
        if connection is None:
            connection = self._open.connection = self._connect(self._node)
        connection.request(method, target)
        response = connection.getresponse()
        status, answer = response.status, _parsed(response.read())
        if "Location" not in answer:
            return status, answer
        place = urlsplit(answer["Location"])
        node = self._connect(place.netloc)
        try:
            headers = {"Content-Type": "application/octet-stream"}
            node.request(method, f"{place.path}?{place.query}", data, headers)
            response = node.getresponse()
            body = response.read()
            if response.status == 200 and data is None:
                return 200, {"bytes": body}
            return response.status, _parsed(body)
        finally:
            node.close()

    def _close(self) -> None:
        connection = getattr(self._open, "connection", None)
        if connection is not None:
            connection.close()
        self._open.connection = None

    def _connect(self, node: str) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(node, timeout=self._waits.request)

    def _refuse(self, verb: str, path: str, status: int, answer: dict[str, Any]) -> NoReturn:
        said = answer.get("RemoteException", {})
        # Behind the first line there may be a stack of Java's.
        message = str(said.get("message") or f"status {status}").splitlines()[0]
        where = f"{self._url}/{path}".rstrip("/")
        if status == 401 or "AccessControlException" in str(said.get("exception")):
            raise UnwritableLocationError(
                f"cannot {verb} {where} as {self._user}: {message}. Check the folder's "
                f"permissions, or name another user in the URL or in {USER}. Millrace does not "
                "speak Kerberos."
            )
        if said.get("exception") in ("ParentNotDirectoryException", "FileAlreadyExistsException"):
            raise UnwritableLocationError(
                f"cannot {verb} {where}: {message}. Choose a folder that is not a file."
            )
        raise StoreError(f"cannot {verb} {where}: {message}. Look at the NameNode's log.")


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    raise http.client.HTTPException(f"an answer that is not WebHDFS's: {body[:80]!r}")
