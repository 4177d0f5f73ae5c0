"""Chosen keys: different texts that two XXH64 take for one."""

from __future__ import annotations

from millrace_lab.soak.chosen_keys import (
    LENGTH,
    MASK,
    PRIME_1,
    PRIME_2,
    PRIME_3,
    colliding_pairs,
    hash_32,
    rotated,
    seeds,
)

PRIME_4 = 0x85EBCA77C2B2AE63


def xxh64(text: bytes, seed: int) -> int:
    """XXH64 of a whole number of stripes, as its specification says."""
    lanes = [seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1]
    for at in range(0, len(text), 32):
        for lane in range(4):
            word = int.from_bytes(text[at + 8 * lane : at + 8 * lane + 8], "little")
            lanes[lane] = rotated(lanes[lane] + word * PRIME_2, 31) * PRIME_1 & MASK
    found = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    for lane in lanes:
        found = (found ^ (rotated(lane * PRIME_2, 31) * PRIME_1)) * PRIME_1 + PRIME_4
    found = (found + len(text)) & MASK
    found = (found ^ (found >> 33)) * PRIME_2 & MASK
    found = (found ^ (found >> 29)) * PRIME_3 & MASK
    return found ^ (found >> 32)


def test_the_hash_of_this_test_is_xxh64() -> None:
    """What the reference implementation gives."""
    assert xxh64(b"a" * 64, 0) == 0xECDB66A0AA9322E2
    assert xxh64(b"a" * 64, 42) == 0x62DC93815DF18C9C
    assert hash_32(7, 42) == 0x26ACCD7F28005477


def test_both_texts_of_a_pair_have_one_hash_under_both_seeds() -> None:
    pairs = colliding_pairs(8)
    assert len({text for pair in pairs for text in pair}) == 16
    for one, other in pairs:
        assert len(one) == len(other) == LENGTH
        assert (one + other).isalnum()
        for seed in seeds():
            assert xxh64(one.encode(), seed) == xxh64(other.encode(), seed)
    assert colliding_pairs(8) == pairs
    assert colliding_pairs(8, "others") != pairs
