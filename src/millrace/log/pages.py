"""Record batches from a file or a network: looked at before anything follows their offsets.

Arrow checks that a message's buffers lie within the message when it reads it, and no more: offsets
that point beyond their buffer end the process when something follows them. A checksum does not
help, because whoever writes a file also writes its checksum.

Invariant: what these functions have let through can be read without touching other memory. Text
that is no UTF-8 goes through, because Spark has it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from millrace.arrays import Int64Array
from millrace.errors import MalformedError


def read_schema(buffer: pa.Buffer) -> pa.Schema:
    """The schema that begins at a buffer; only types that state can have."""
    try:
        schema = pa.ipc.read_schema(buffer)
        names = schema.names
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise MalformedError(f"its schema cannot be read: {_brief(error)}") from error
    if len(set(names)) < len(names):
        raise MalformedError("two of its columns have the same name")
    plain_schema(schema)
    return schema


def read_page(page: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of a page, a view of it; no column has been looked at."""
    try:
        message = pa.ipc.read_message(page)
        metadata = memoryview(message.metadata)
        if message.type != "record batch" or _is_compressed(metadata):
            raise MalformedError("it is not a plain record batch")
        if _lengths(metadata).min(initial=0) < 0:
            raise MalformedError("a column has less than no rows")
        batch = pa.ipc.read_record_batch(page, schema)
        _check_within(batch, page)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise MalformedError(f"it cannot be read: {_brief(error)}") from error
    return batch


def check_columns(batch: pa.RecordBatch, names: Collection[str] | None = None) -> None:
    """Raise unless columns can be read whatever is in them; all of them, if none are named."""
    try:
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if names is not None and field.name not in names:
                continue
            if len(column) != batch.num_rows:
                raise MalformedError(f"column {field.name!r} has another number of rows")
            column.view(_plain(field.type)).validate(full=True)
            if not field.nullable and column.null_count:
                raise MalformedError(f"column {field.name!r} has NULLs")
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise MalformedError(f"column {field.name!r}: {_brief(error)}") from error


def read_file(data: pa.Buffer) -> pa.Table:
    """All rows of an Arrow file, of any types; nothing in it is unpacked."""
    try:
        for message in pa.ipc.MessageReader.open_stream(data.slice(min(8, data.size))):
            # A result is small when it is written, and must not become large by being read.
            if message.type != "schema" and _is_compressed(memoryview(message.metadata)):
                raise MalformedError("it is compressed")
        file = pa.ipc.open_file(data)
        batches = []
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            batch.validate(full=True)
            batches.append(batch)
        return pa.Table.from_batches(batches, file.schema)
    except (pa.ArrowException, OSError, ValueError, KeyError, EOFError) as error:
        raise MalformedError(f"it cannot be read: {_brief(error)}") from error


def plain_schema(schema: pa.Schema) -> None:
    """Raise if a column has a type that state never has."""
    for field in schema:
        _plain(field.type)


ALIGNED = 8
"""Arrow's writers begin every buffer at a multiple of this many bytes."""

_FLAT = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_time64,
    pa.types.is_null,
)


def _plain(data_type: pa.DataType) -> pa.DataType:
    """The type with text as bytes, which have the same layout: text need not be UTF-8."""
    if pa.types.is_string(data_type):
        return pa.binary()
    if pa.types.is_large_string(data_type):
        return pa.large_binary()
    if pa.types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(_plain(key.type)), item.with_type(_plain(item.type)))
    if pa.types.is_list(data_type):
        element = data_type.value_field
        return pa.list_(element.with_type(_plain(element.type)))
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_plain(field.type)) for field in data_type])
    if not any(is_kind(data_type) for is_kind in _FLAT):
        raise MalformedError(f"it has a column of type {data_type}, which state never has")
    return data_type


def _check_within(batch: pa.RecordBatch, page: pa.Buffer) -> None:
    """Raise if a buffer is not a part of the page: Arrow would have made it."""
    end = page.address + page.size
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is None or not buffer.size:
                continue
            last = buffer.address + buffer.size
            if not page.address <= buffer.address <= last <= end or buffer.address % ALIGNED:
                raise MalformedError("its columns are not in it, where they must be")


def _is_compressed(metadata: memoryview) -> bool:
    """Whether a record batch's buffers would be unpacked, to any length, when it is read.

    Of a table `RecordBatch`, field 3 is set if the body is compressed.
    """
    table = _batch(metadata)
    return table is not None and _field(metadata, table, 3) is not None


def _lengths(metadata: memoryview) -> Int64Array:
    """Of all columns and columns within them: how many rows, and how many NULLs.

    Of a table `RecordBatch`, field 1 is a vector of pairs of these.
    """
    table = _batch(metadata)
    at = None if table is None else _field(metadata, table, 1)
    if at is None:
        return np.empty(0, np.int64)
    vector = at + _u32(metadata, at)
    return np.frombuffer(metadata, "<i8", 2 * _u32(metadata, vector), vector + 4)


def _batch(metadata: memoryview) -> int | None:
    """Where a message's table `RecordBatch` is; None if it has none.

    The metadata is a flatbuffer that Arrow has verified: a table `Message`, whose field 1 is the
    kind of its field 2. That is a table `RecordBatch`, or has one as its field 1.
    """
    message = _u32(metadata, 0)
    kind, header = _field(metadata, message, 1), _field(metadata, message, 2)
    if kind is None or header is None:
        return None
    table = header + _u32(metadata, header)
    if metadata[kind] == _DICTIONARY:
        inner = _field(metadata, table, 1)
        return None if inner is None else inner + _u32(metadata, inner)
    return table


_DICTIONARY = 2
"""The kind of a message with a dictionary."""


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table is; None if it is not set."""
    fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    at = 4 + 2 * number
    if at >= int.from_bytes(data[fields : fields + 2], "little"):
        return None
    offset = int.from_bytes(data[fields + at : fields + at + 2], "little")
    return table + offset if offset else None


def _u32(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _brief(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]
