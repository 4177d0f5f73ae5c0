"""Which fingerprints a location has: how they are computed, and its salt.

A location keeps its scheme for life, because its rows are found by the fingerprints that they were
written with. Scheme 1 is that of format 1: two keys can be made to have one fingerprint. New
locations have scheme 2, in which they cannot: see docs/decisions/0018.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from millrace import clock
from millrace.errors import MalformedError, NewerFormatError
from millrace.fields import Fields

SALT_DIGITS = 16


@dataclass(frozen=True)
class Scheme:
    """How a location's fingerprints are computed."""

    version: int
    salt: int = 0
    """64 bits that those who choose keys do not know. Without the salt they cannot compute where
    keys are; that keys never merge does not depend on it."""

    @staticmethod
    def fresh() -> Scheme:
        """The scheme of a new location."""
        return Scheme(2, clock.fresh_salt())

    def to_json(self) -> dict[str, Any]:
        return {"scheme": self.version, "salt": f"{self.salt:0{SALT_DIGITS}x}"}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Scheme:
        fields = Fields(data, "'fingerprints'")
        version, salt = fields.integer("scheme", 1), fields.text("salt")
        if version > 2:
            raise NewerFormatError(
                f"fingerprints have scheme {version}, which this Millrace does not know. Upgrade "
                "Millrace."
            )
        if not re.fullmatch(f"[0-9a-f]{{{SALT_DIGITS}}}", salt):
            raise MalformedError(f"'salt' is {salt!r}, not {SALT_DIGITS} hexadecimal digits")
        return Scheme(version, int(salt, 16))


CHAINED = Scheme(1)
"""The scheme of locations of format 1."""

UNSALTED = Scheme(2)
"""For state that is not kept, such as a harness's: the same keys are in the same places each time.
"""
