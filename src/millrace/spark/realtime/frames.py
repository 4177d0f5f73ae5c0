"""What passes between a Spark task and the process of its shard: frames over a socket.

    frame = kind (1 byte), length (4 bytes, big endian), that many bytes

The opening frame is different: it has a number of parts, each with a length of its own. Rows and
answers are Arrow record batches without their schema, which both ends know. The other end is
`ShardSession.java`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

OPEN = 1
"""To the process: an epoch begins."""
ROWS = 2
END = 3
"""To the process: no more rows."""
OPENED = 4
"""From the process: it is at the version, and this is its number."""
ANSWER = 5
DONE = 6
"""From the process: a frame of rows is applied, and all of its answers are sent."""
REPORT = 7
FAILED = 8

_HEADER = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_OPENING_PARTS = 5
_LONGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Opening:
    """What a process has to know of an epoch."""

    shard: int
    executor: str
    moment: str
    schema: bytes
    """The Arrow schema of the rows, as an IPC message."""
    task: bytes


@dataclass(frozen=True)
class Frame:
    """Any frame but the opening one."""

    kind: int
    data: bytes


def read(stream: BinaryIO) -> Opening | Frame | None:
    """The next frame; None at the end of the stream."""
    header = stream.read(_HEADER.size)
    if not header:
        return None
    kind, length = _HEADER.unpack(_whole(header, _HEADER.size))
    if kind != OPEN:
        return Frame(kind, _read(stream, length))
    if length != _OPENING_PARTS:
        raise EOFError(f"an opening frame has {length} parts instead of {_OPENING_PARTS}")
    shard, executor, moment, schema, task = (_part(stream) for _ in range(length))
    return Opening(int(shard), executor.decode(), moment.decode(), schema, task)


def _part(stream: BinaryIO) -> bytes:
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    return _read(stream, length)


def _read(stream: BinaryIO, length: int) -> bytes:
    return _whole(stream.read(length), length)


def _whole(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise EOFError(f"a frame ends after {len(data)} of {length} bytes")
    return data


def write(stream: BinaryIO, kind: int, data: bytes | memoryview = b"") -> None:
    """Put a frame into the stream's buffer; `flush` sends it."""
    if len(data) > _LONGEST:
        raise ValueError(f"a frame of {len(data)} bytes is too long")
    stream.write(_HEADER.pack(kind, len(data)))
    stream.write(data)
