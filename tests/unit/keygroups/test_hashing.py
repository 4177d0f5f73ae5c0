"""Fingerprints: keys that were chosen stay apart, and all are spread evenly."""

from __future__ import annotations

import decimal
import hashlib
import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.collisions import MASK, colliding_members, colliding_strings

from millrace.keygroups import groups_of, sha256
from millrace.keygroups.encoding import encoded
from millrace.keygroups.hashing import (
    HASHED,
    SHORT,
    _mixed_int,
    _rounds,
    _short_words,
    digests,
    entry_digests,
    fingerprints,
)
from millrace.keygroups.scheme import CHAINED, UNSALTED, Scheme

SALTED = Scheme(2, 0xF00D_F00D_F00D_F00D)
SCHEMES = [UNSALTED, SALTED]


def pairs(columns: list[pa.Array], scheme: Scheme) -> list[tuple[int, int]]:
    hi, lo = fingerprints(columns, scheme)
    return list(zip(hi.tolist(), lo.tolist(), strict=True))


def encodings(columns: list[pa.Array]) -> list[bytes]:
    data, starts = encoded(columns)
    return [data[i:j].tobytes() for i, j in itertools.pairwise(starts)]


def test_strings_that_collide_in_scheme_1_do_not_in_scheme_2() -> None:
    texts = pa.array(colliding_strings(16))
    assert len(set(pairs([texts], CHAINED))) == 1
    for scheme in SCHEMES:
        assert len(set(pairs([texts], scheme))) == 16


def test_entries_that_collide_in_scheme_1_do_not_in_scheme_2() -> None:
    owner = np.uint64([7]).repeat(5), np.uint64([99]).repeat(5)
    keys = [b"b" + member for member in colliding_members(5, seed=99, prefix=1)]
    assert len(set(entry_digests(owner, keys, CHAINED)[1].tolist())) == 1
    for scheme in SCHEMES:
        assert len(set(entry_digests(owner, keys, scheme)[1].tolist())) == 5
    keys = [b"b" + member for member in colliding_members(5, seed=0, prefix=1)]
    assert len(set(digests(keys, CHAINED)[0].tolist())) == 1
    for scheme in SCHEMES:
        assert len(set(digests(keys, scheme)[0].tolist())) == 5


def test_an_entry_depends_on_its_owner() -> None:
    owners = np.uint64([1, 1, 2]), np.uint64([1, 2, 1])
    assert len(set(entry_digests(owners, [b"x"] * 3, UNSALTED)[1].tolist())) == 3


def undone(hi: int, lo: int, salt: int) -> bytes:
    """The short encoding that a fingerprint was made of."""
    rounds = _rounds(salt).tolist()
    x, y = hi, lo
    y ^= _mixed_int((x + rounds[3]) & MASK) >> 1
    x ^= _mixed_int((y + rounds[2]) & MASK)
    y ^= _mixed_int((x + rounds[1]) & MASK) >> 1
    x ^= _mixed_int((y + rounds[0]) & MASK)
    whole = x.to_bytes(8, "little") + y.to_bytes(8, "little")
    assert whole[whole[15] : 15] == bytes(15 - whole[15])
    return whole[: whole[15]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_short_keys_can_be_read_from_their_fingerprints(scheme: Scheme) -> None:
    """So no two of them have the same one."""
    rng = random.Random(3)
    given = [rng.randbytes(n % (SHORT + 1)) for n in range(2000)]
    starts = np.cumsum([0, *map(len, given)])
    hi, lo = _short_words(np.frombuffer(b"".join(given), np.uint8), starts, _rounds(scheme.salt))
    assert not (lo & HASHED).any()
    back = [undone(h, w, scheme.salt) for h, w in zip(hi.tolist(), lo.tolist(), strict=True)]
    assert back == given


@pytest.mark.parametrize("scheme", SCHEMES)
def test_long_keys_are_hashed_and_marked(scheme: Scheme) -> None:
    texts = ["x" * n for n in (*range(40), 127, 128, 20_000)]
    salt = scheme.salt.to_bytes(8, "little")
    for (hi, lo), encoding in zip(
        pairs([pa.array(texts)], scheme), encodings([pa.array(texts)]), strict=True
    ):
        if len(encoding) <= SHORT:
            assert undone(hi, lo, scheme.salt) == encoding
        else:
            digest = hashlib.sha256(salt + encoding).digest()
            assert hi == int.from_bytes(digest[:8], "little")
            assert lo == int.from_bytes(digest[8:16], "little") | 1 << 63


NUMBERS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, -1, 0, 127, None]),
    (pa.int16(), [-32768, 0, 5, None]),
    (pa.int32(), [-(2**31), -1, 2**31 - 1, None]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1, None]),
    (pa.float32(), [0.0, 1.5, float("nan"), None]),
    (pa.float64(), [0.0, 1.5, float("nan"), float("inf"), None]),
    (pa.date32(), [0, 20_000, None]),
    (pa.timestamp("us", "UTC"), [0, -1, 2**60, None]),
    (pa.decimal128(18, 2), [decimal.Decimal("-1.25"), decimal.Decimal("0.00"), None]),
]


@pytest.mark.parametrize(("kind", "values"), NUMBERS, ids=str)
def test_the_short_way_for_numbers_gives_the_same(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    for scheme in SCHEMES:
        data, starts = encoded([column])
        long_way = [words.tolist() for words in _short_words(data, starts, _rounds(scheme.salt))]
        assert [words.tolist() for words in fingerprints([column], scheme)] == long_way
        assert len(set(pairs([column], scheme))) == len(values)


def test_no_keys_have_no_fingerprints() -> None:
    for column in (pa.array([], pa.int64()), pa.array([], pa.string())):
        assert pairs([column, column], UNSALTED) == []
        assert pairs([column], UNSALTED) == []


SHAPES: dict[str, pa.Array] = {
    "numbers in a row": pa.array(range(100_000)),
    "multiples of 4096": pa.array(range(0, 4096 * 100_000, 4096)),
    "small numbers, negative": pa.array(range(-100_000, 0), pa.int32()),
    "doubles": pa.array(np.arange(100_000) / 4),
    "times, a minute apart": pa.array(np.arange(100_000) * 60_000_000, pa.timestamp("us")),
    "short strings": pa.array([f"user-{n}" for n in range(100_000)]),
    "long strings": pa.array([f"a user with the number {n}" for n in range(30_000)]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scheme", SCHEMES, ids=["unsalted", "salted"])
def test_fingerprints_are_spread_evenly(shape: str, scheme: Scheme) -> None:
    """Over key groups, over the entries of a base's directory, and over the slots of an index."""
    hi, lo = fingerprints([SHAPES[shape]], scheme)
    rows = len(hi)
    spread = {
        "key groups": groups_of(hi, 256),
        "directory": ((hi << np.uint64(8)) >> np.uint64(56)).astype(np.int64),
        "slots": (lo & np.uint64(255)).astype(np.int64),
    }
    for part, numbers in spread.items():
        counts = np.bincount(numbers, minlength=256)
        # The sum of 255 squares: 255 on average, and above 400 less than once in ten million times.
        chi2 = float(((counts - rows / 256) ** 2 / (rows / 256)).sum())
        assert 140 < chi2 < 400, part


def test_sha256_is_that_of_hashlib() -> None:
    rng = random.Random(5)
    messages = [rng.randbytes(n) for n in (*range(140), 1000, 0, 55, 5000)]
    starts = np.cumsum([0, *map(len, messages)])
    data = np.frombuffer(b"".join(messages), np.uint8)
    for salt in (0, SALTED.salt):
        hi, lo = sha256.hashed(data, starts, salt)
        prefix = salt.to_bytes(8, "little")
        for i, message in enumerate(messages):
            digest = hashlib.sha256(prefix + message).digest()
            assert hi[i] == int.from_bytes(digest[:8], "little")
            assert lo[i] == int.from_bytes(digest[8:16], "little")
    prefixes = np.frombuffer(rng.randbytes(16 * len(messages)), np.uint8).reshape(-1, 16)
    hi, _ = sha256.hashed(data, starts, 9, prefixes)
    for i, message in enumerate(messages):
        whole = (9).to_bytes(8, "little") + prefixes[i].tobytes() + message
        assert hi[i] == int.from_bytes(hashlib.sha256(whole).digest()[:8], "little")
    assert [len(words) for words in sha256.hashed(data[:0], starts[:1], 0)] == [0, 0]
