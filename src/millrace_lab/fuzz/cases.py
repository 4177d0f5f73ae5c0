"""One mutation per case: what is changed in a copy of the corpus, and whether it was sealed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.log.layout import IDENTITY, LEASES, MANIFESTS, REQUESTS, SEGMENTS, SPARK, VIEWS
from millrace.log.manifest import seal
from millrace.log.segment import DELETED, HI, LO
from millrace.log.segment.entry import INDEX_KEY
from millrace_lab.fuzz.corpus import EPOCHS, VIEW
from millrace_lab.fuzz.mutations import ODD_VALUES, mutate_bytes, mutate_json, odd_name
from millrace_lab.fuzz.sealing import Manifests, describe, read_sealed

SEALED, DAMAGED, OTHER_ROWS = "sealed", "damaged", "other rows"
"""What a mutation may do: show rows of any epoch; change nothing or be refused; show any rows."""

Case = Callable[[random.Random, Path], str]
"""Changes a location; returns what that may do."""


def _manifest(rng: random.Random, root: Path) -> str:
    manifests = Manifests(root)
    epoch = rng.randint(1, EPOCHS)
    if rng.randrange(8) == 0:
        path = manifests.path(epoch)
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
        return DAMAGED
    before = manifests.bodies[epoch]
    manifests.bodies[epoch] = mutate_json(rng, before)
    manifests.write(epoch, chained=rng.randrange(5) > 0)
    # A state by another name is another state, which may be empty. A row is put together from
    # several tables: if one has other segments, the row is a mix of two epochs.
    after = manifests.bodies[epoch]
    is_same = all(_all(field, before) == _all(field, after) for field in ("name", "segments"))
    return SEALED if is_same else OTHER_ROWS


def _all(field: str, body: Any) -> list[Any]:
    """What a field has, wherever it is in a manifest."""
    if isinstance(body, dict):
        own = [body[field]] if field in body else []
        return own + [found for value in body.values() for found in _all(field, value)]
    return (
        [found for value in body for found in _all(field, value)] if isinstance(body, list) else []
    )


def _segment(rng: random.Random, root: Path) -> str:
    path = rng.choice(sorted((root / SEGMENTS).rglob("*.arrow")))
    data = path.read_bytes()
    if rng.randrange(8) == 0:
        path.write_bytes(mutate_bytes(rng, data))
        return DAMAGED
    manifests = Manifests(root)
    entries = list(manifests.entries(path.relative_to(root).as_posix()))
    pages = [(offset, length) for offset, length, _ in entries[0]["pages"]]
    if rng.randrange(2):
        made, pages = _rewritten(rng, data)
    elif pages and rng.randrange(3):
        offset, length = rng.choice(pages)
        # The message's metadata is at its front, and the offsets of columns are all over it.
        high = offset + rng.choice((min(length, 600), length))
        made = mutate_bytes(rng, data, offset, high)
    else:
        made = mutate_bytes(rng, data)
    for entry in entries:
        describe(entry, made, pages)
    path.write_bytes(made)
    manifests.write()
    return OTHER_ROWS


def _rewritten(rng: random.Random, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """A segment of which the index or a batch is another, written as Arrow writes it."""
    file = pa.ipc.open_file(pa.py_buffer(data))
    batches = [file.get_batch(n) for n in range(file.num_record_batches)]
    index = json.loads(file.schema.metadata[INDEX_KEY])
    if rng.randrange(2) or not batches:
        index = mutate_json(rng, index)
    else:
        at = rng.randrange(len(batches))
        batches[at] = _other_batch(rng, batches[at])
    compression = rng.choice((None, None, None, "zstd", "lz4"))
    made = [batch for batch in batches if batch.schema.equals(batches[-1].schema)]
    schema = made[-1].schema if made else file.schema
    sink = pa.BufferOutputStream()
    spans = []
    options = pa.ipc.IpcWriteOptions(compression=compression)
    schema = schema.with_metadata({INDEX_KEY: json.dumps(index).encode()})
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in made:
            start = sink.tell()
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            spans.append((start, sink.tell()))
    whole = sink.getvalue().to_pybytes()
    if spans:
        spans[0] = (16 + int.from_bytes(whole[12:16], "little"), spans[0][1])
    return whole, [(start, end - start) for start, end in spans]


def _other_batch(rng: random.Random, batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = list(range(batch.num_rows))
    kind = rng.randrange(7)
    if kind == 0:
        rng.shuffle(rows)
        return batch.take(pa.array(rows, pa.int64()))
    if kind == 1:
        return batch.take(pa.array(rows + rows[:1], pa.int64()))
    if kind == 2:
        return batch.slice(0, batch.num_rows - 1)
    name = rng.choice((HI, LO, DELETED, *batch.schema.names))
    at = batch.schema.get_field_index(name)
    column = batch.column(at)
    if kind == 3:
        return batch.set_column(at, name, _other_values(rng, column))
    if kind == 4:
        return batch.drop_columns([name])
    if kind == 5:
        other = rng.choice((pa.int64(), pa.string(), pa.large_string(), pa.float32(), pa.null()))
        return batch.set_column(at, name, pa.nulls(len(column), other))
    try:
        return batch.set_column(at, name, column.dictionary_encode())
    except pa.ArrowNotImplementedError:
        return batch.rename_columns([f"{n}{rng.choice(('', 'x'))}" for n in batch.schema.names])


def _other_values(rng: random.Random, column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    at = rng.randrange(len(values)) if values else 0
    if pa.types.is_uint64(column.type):
        odd: Any = rng.choice((0, 2**64 - 1, 2**60, values[at - 1], values[at] ^ 1))
    elif pa.types.is_boolean(column.type):
        odd = not values[at]
    else:
        odd = None
    return pa.array([*values[:at], odd, *values[at + 1 :]], column.type)


def _identity(rng: random.Random, root: Path) -> str:
    return _sealed_file(rng, root / IDENTITY)


def _request(rng: random.Random, root: Path) -> str:
    files = sorted((root / REQUESTS).glob("*.json"))
    return _sealed_file(rng, rng.choice(files))


def _lease(rng: random.Random, root: Path) -> str:
    path = next((root / LEASES).iterdir())
    if rng.randrange(2):
        return _sealed_file(rng, path)
    _named(rng, path)
    return SEALED


def _sealed_file(rng: random.Random, path: Path) -> str:
    if rng.randrange(6) == 0:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
        return DAMAGED
    body = mutate_json(rng, read_sealed(path))
    if rng.randrange(20) == 0:
        path.write_bytes(_deep(rng))
        return SEALED
    path.write_bytes(seal(body)[0])
    return SEALED


def _deep(rng: random.Random) -> bytes:
    """Sealed JSON that is too deep, too long a number, or no object."""
    import hashlib

    depth = rng.choice((500, 5000, 100_000))
    line = rng.choice((b"[" * depth + b"]" * depth, b"9" * depth, b"1e999", b'{"format":NaN}'))
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def _view(rng: random.Random, root: Path) -> str:
    path = next((root / VIEWS / VIEW).iterdir())
    kind = rng.randrange(3)
    if kind == 0:
        _named(rng, path)
    elif kind == 1:
        _named(rng, path.parent)
    else:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    return DAMAGED


def _spark(rng: random.Random, root: Path) -> str:
    path = rng.choice(sorted(p for p in (root / SPARK).rglob("*") if p.is_file()))
    kind = rng.randrange(3)
    if kind == 0:
        _named(rng, path)
    elif kind == 1:
        path.write_bytes(mutate_bytes(rng, path.read_bytes()))
    else:
        lines = path.read_bytes().split(b"\n")
        at = rng.randrange(len(lines))
        odd = rng.choice((*ODD_VALUES, {"logOffset": rng.choice(ODD_VALUES)}))
        lines[at] = rng.choice((json.dumps(odd).encode(), b"[" * 100_000, b"\xff\xfe"))
        path.write_bytes(b"\n".join(lines))
    return DAMAGED


def _names(rng: random.Random, root: Path) -> str:
    folder = rng.choice(
        (MANIFESTS, f"{SEGMENTS}/tested", REQUESTS, LEASES, VIEWS, f"{VIEWS}/{VIEW}")
    )
    example = rng.choice(sorted((root / folder).iterdir()))
    name = odd_name(rng, example.name)[:120]
    made = root / folder / name
    if not made.exists():
        made.write_bytes(example.read_bytes() if example.is_file() and rng.randrange(2) else b"")
    return SEALED


def _named(rng: random.Random, path: Path) -> None:
    """Give a file or a folder another name."""
    name = odd_name(rng, path.name)[:120]
    if name not in (".", "..") and not (path.parent / name).exists():
        path.rename(path.parent / name)


CASES: dict[str, Case] = {
    "manifest": _manifest,
    "segment": _segment,
    "identity": _identity,
    "request": _request,
    "lease": _lease,
    "view": _view,
    "spark": _spark,
    "names": _names,
}
"""Target -> what makes a case of it."""
