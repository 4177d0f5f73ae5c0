"""Frames: what is written is read, and what was cut short is noticed."""

from __future__ import annotations

import io

import pytest
from tests.unit.spark.realtime.resident import write_opening

from millrace.spark.realtime import frames

OPENING = frames.Opening(3, "driver", '{"é": 1}', b"schema", bytes(range(256)))


def written() -> bytes:
    stream = io.BytesIO()
    write_opening(stream, OPENING)
    frames.write(stream, frames.ROWS, b"rows")
    frames.write(stream, frames.END)
    return stream.getvalue()


def test_frames_are_read_as_they_were_written() -> None:
    stream = io.BytesIO(written())
    assert frames.read(stream) == OPENING
    assert frames.read(stream) == frames.Frame(frames.ROWS, b"rows")
    assert frames.read(stream) == frames.Frame(frames.END, b"")
    assert frames.read(stream) is None


def read_all(data: bytes) -> None:
    stream = io.BytesIO(data)
    while frames.read(stream) is not None:
        pass


def test_a_stream_that_ends_within_a_frame_is_an_error_wherever_it_does() -> None:
    whole = written()
    ends = {0}
    stream = io.BytesIO(whole)
    while frames.read(stream) is not None:
        ends.add(stream.tell())
    assert len(ends) == 4
    for cut in set(range(len(whole))) - ends:
        with pytest.raises(EOFError):
            read_all(whole[:cut])


def test_an_opening_with_other_parts_is_refused() -> None:
    data = bytearray(written())
    data[4] = 4
    with pytest.raises(EOFError, match="4 parts instead of 5"):
        frames.read(io.BytesIO(bytes(data)))
