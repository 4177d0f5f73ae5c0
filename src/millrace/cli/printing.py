"""How commands print rows: a table for people, CSV, JSON, Parquet or Arrow for programs."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet
from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.cli.failures import Failure
from millrace.operators.process.convert import to_python

FORMATS = ("table", "csv", "json", "parquet", "arrow")
BINARY = ("parquet", "arrow")
WIDE = 60
"""A cell in a table is cut after this many characters."""


def objects(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON has them: times as ISO text, decimals as text, bytes in base64."""
    names = rows.schema.names
    columns = [[plain(v) for v in _listed(column)] for column in rows.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _listed(column: pa.ChunkedArray) -> list[Any]:
    return [value for chunk in column.chunks for value in to_python(chunk)]


def plain(value: Any) -> Any:
    """A value that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def show(rows: pa.Table, limit: int | None = None, title: str | None = None) -> None:
    """A table for people; numbers to the right."""
    shown = rows if limit is None else rows.slice(0, limit)
    table = Table(title=title, title_justify="left")
    for field in rows.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        is_number = numeric or pa.types.is_decimal(field.type)
        table.add_column(
            Text(field.name), justify="right" if is_number else "left", overflow="fold"
        )
    for row in zip(*(_listed(column) for column in shown.columns), strict=True):
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console()
    console.print(table)
    if shown.num_rows < rows.num_rows:
        console.print(f"{shown.num_rows} of {rows.num_rows} rows; --limit shows more")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list | tuple | Mapping):
        text = json.dumps(plain(value), ensure_ascii=False)
    else:
        text = str(plain(value))
    return text if len(text) <= WIDE else text[: WIDE - 1] + "…"


def write(rows: pa.Table, form: str, output: str | None, limit: int) -> None:
    """Rows in a format, to a file or to standard output."""
    if form == "table" and output is None:
        show(rows, limit)
        return
    if form == "table":
        raise Failure("--output needs a --format for files: csv, json, parquet or arrow.")
    if output is None and form in BINARY and sys.stdout.isatty():
        raise Failure(f"--format {form} is not for a terminal: give --output FILE, or redirect.")
    try:
        if output is None:
            _encode(rows, form, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with open(output, "wb") as file:
            _encode(rows, form, file)
    except OSError as error:
        raise Failure(f"cannot write {output or 'standard output'}: {error.strerror}.") from error


def _encode(rows: pa.Table, form: str, sink: BinaryIO) -> None:
    if form == "csv":
        csv.write_csv(_flat(rows), sink)
    elif form == "json":
        sink.write(json.dumps(objects(rows), ensure_ascii=False).encode() + b"\n")
    elif form == "parquet":
        parquet.write_table(rows, sink)
    else:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)


def _flat(rows: pa.Table) -> pa.Table:
    """Rows that CSV can have: lists, maps and structs as JSON, bytes in base64."""
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            texts = [None if v is None else _text(v) for v in _listed(column)]
            columns.append(pa.chunked_array([pa.array(texts, pa.string())]))
        elif pa.types.is_decimal(field.type) or pa.types.is_duration(field.type):
            columns.append(pc.cast(column, pa.string()))
        else:
            columns.append(column)
    return pa.table(columns, names=rows.schema.names)


def _text(value: Any) -> str:
    found = plain(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
