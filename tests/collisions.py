"""Keys that were chosen to have the same XXH64 or XXH3, for tests that such keys do not merge.

XXH64 reads 32 bytes at a time into four lanes that do not see each other, and undoing what a lane
does with a word is simple. Adding `d` to the product of a lane's first word adds `rotated(d)` to
the lane, unless a carry crosses the rotation; the lane's second word takes it away again. That does
not depend on the seed, so both halves of a fingerprint of scheme 1 are hit at once.

XXH3 of long inputs multiplies the halves of each word after a XOR with a secret, so that a word
that begins with the secret makes no product. What is left is a sum of words, which two stripes can
share out in any way.
"""

from __future__ import annotations

import itertools

MASK = (1 << 64) - 1
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
UNDO_2 = pow(PRIME_2, -1, 1 << 64)
PRINTABLE = range(0x23, 0x5B)
"""From '#' to 'Z'."""

XXH3_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db")
"""The beginning of XXH3's own secret."""


def colliding_strings(count: int) -> list[str]:
    """Up to 16 printable strings of 64 characters; all have one XXH64, whatever the seed."""
    (first, second), (other_first, other_second) = _word_pairs()
    found = []
    for choice in itertools.islice(itertools.product((False, True), repeat=4), count):
        heads = [other_first if swapped else first for swapped in choice]
        tails = [other_second if swapped else second for swapped in choice]
        found.append(b"".join(w.to_bytes(8, "little") for w in heads + tails).decode())
    assert len(set(found)) == count
    return found


def _word_pairs() -> tuple[tuple[int, int], tuple[int, int]]:
    """Two ways to fill the two words of a lane, with the same effect on it."""
    for d in itertools.count(1):
        first = _printable_step(d * UNDO_2 & MASK)
        # A lane is rotated by 31 bits and multiplied, and so is what was added to it.
        second = _printable_step(-(d << 31) * PRIME_1 * UNDO_2 & MASK)
        if first and second:
            return (first[0], second[0]), (first[1], second[1])
    raise AssertionError


def _printable_step(step: int) -> tuple[int, int] | None:
    """A word and the word `step` further, both of printable characters."""
    low = high = carry = 0
    for i in range(8):
        for byte in PRINTABLE:
            total = byte + (step >> 8 * i & 255) + carry
            if total & 255 in PRINTABLE:
                low |= byte << 8 * i
                high |= (total & 255) << 8 * i
                carry = total >> 8
                break
        else:
            return None
    return low, high


def colliding_members(count: int, seed: int, prefix: int) -> list[bytes]:
    """Bytes that have one XXH3 (128 bits) with this seed, after `prefix` other bytes."""
    secret = [int.from_bytes(XXH3_SECRET[8 * i : 8 * i + 8], "little") for i in range(3)]
    # The secret that a seed makes of XXH3's own.
    seeded = [(s + (seed if i % 2 == 0 else -seed)) & MASK for i, s in enumerate(secret)]
    found = []
    for n in range(count):
        message = bytearray(256)
        for stripe, share in ((0, n), (1, (1 << 32) - 1 - n)):
            word = (seeded[1 + stripe] & 0xFFFFFFFF) | share << 32
            message[64 * stripe + 8 : 64 * stripe + 16] = word.to_bytes(8, "little")
        found.append(bytes(message[prefix:]))
    return found
