"""Keys that somebody chose so that they collide: pairs of texts with equal XXH64 under two seeds.

A fingerprint that was two XXH64 with fixed seeds (format version 1) took both texts of a pair for
one key. XXH64 is no cryptographic hash: of 64 bytes it takes two words into each of four lanes, and
a lane is `r(r(start + first) + second)` with `r` a rotation and odd factors. Change the first word,
and the change of the second that makes up for it is one subtraction away. The change goes through a
rotation, which is nearly linear, so for one pair of first words in some it is the same under
both seeds.
"""

from __future__ import annotations

from millrace import clock

MASK = (1 << 64) - 1
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_5 = 0x27D4EB2F165667C5
SEED = 42
"""What Spark's `xxhash64` starts with."""
SALTS = (0x6D696C6C, 0x72616365)
"""What the two halves of a fingerprint of version 1 began with."""

LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WORD = 8
LENGTH = 64
"""Two stripes of four words: the first word of each is where the two texts of a pair differ."""


def colliding_pairs(number: int, seed: str = "chosen") -> list[tuple[str, str]]:
    """Pairs of different texts with one fingerprint of version 1."""
    dice = clock.dice(f"{seed} keys")
    return [_pair(dice) for _ in range(number)]


def seeds() -> tuple[int, int]:
    """What the bytes of a text that is the only key, and not NULL, were hashed with."""
    first, second = (hash_32(0, hash_32(salt, SEED)) for salt in SALTS)
    return first, second


def hash_32(value: int, seed: int) -> int:
    """XXH64 of four bytes."""
    found = ((seed + PRIME_5 + 4) ^ (value * PRIME_1)) & MASK
    found = (rotated(found, 23) * PRIME_2 + PRIME_3) & MASK
    found = ((found ^ (found >> 33)) * PRIME_2) & MASK
    found = ((found ^ (found >> 29)) * PRIME_3) & MASK
    return found ^ (found >> 32)


def rotated(value: int, bits: int) -> int:
    value &= MASK
    return ((value << bits) | (value >> (64 - bits))) & MASK


def _pair(dice: clock.Dice) -> tuple[str, str]:
    starts = [(seed + PRIME_1 + PRIME_2) & MASK for seed in seeds()]
    while True:
        one, other = _word(dice), _word(dice)
        moved = {
            (rotated(start + one * PRIME_2, 31) - rotated(start + other * PRIME_2, 31)) & MASK
            for start in starts
        }
        if one == other or len(moved) > 1:
            continue
        # r(start + one) + second = r(start + other) + its second, in words times PRIME_2.
        wanted = moved.pop() * PRIME_1 * pow(PRIME_2, -1, 1 << 64) & MASK
        seconds = _words_apart(wanted, dice)
        if seconds is None:
            continue
        between, after = _text(dice, 3 * WORD), _text(dice, 3 * WORD)
        first, second = (
            (a.to_bytes(WORD, "little") + between + b.to_bytes(WORD, "little") + after).decode()
            for a, b in zip((one, other), seconds, strict=True)
        )
        return first, second


def _text(dice: clock.Dice, length: int) -> bytes:
    return bytes(dice.choices(LETTERS, k=length))


def _word(dice: clock.Dice) -> int:
    return int.from_bytes(_text(dice, WORD), "little")


def _words_apart(difference: int, dice: clock.Dice) -> tuple[int, int] | None:
    """Two words of letters, the second larger by `difference` modulo 2**64; None if there are none.

    Byte by byte, the lowest first, with the carry of the bytes before.
    """
    one, other, carry = bytearray(), bytearray(), 0
    for byte in difference.to_bytes(WORD, "little"):
        step = byte + carry
        fitting = [letter for letter in LETTERS if (letter + step) & 0xFF in LETTERS]
        if not fitting:
            return None
        letter = dice.choice(fitting)
        one.append(letter)
        other.append((letter + step) & 0xFF)
        carry = (letter + step) >> 8
    return int.from_bytes(one, "little"), int.from_bytes(other, "little")
