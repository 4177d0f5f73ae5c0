"""What the fingerprint of a key needs, whether Spark computes it or this process does.

Only constants and checks, so that readers load neither PySpark nor Numba to know which keys they
can look up.
"""

from __future__ import annotations

from typing import Any

from millrace import types
from millrace.errors import UnhashableKeyError

HI_SALT = 0x6D696C6C
LO_SALT = 0x72616365
"""What the two halves of a fingerprint begin with."""


def check_computable(name: str, description: Any) -> None:
    """Raise if only Spark can compute the fingerprint of a key of this type, given in JSON."""
    for part, kind in types.collated_parts(name, description):
        raise UnhashableKeyError(
            f"key column {part!r} has type {kind}: only Spark knows which strings are equal under "
            "its collation, so such keys cannot be looked up without it. Read the state with SQL "
            "or as a Spark table instead."
        )


def is_computable(description: Any) -> bool:
    """Whether the fingerprint of a key of this type, given in JSON, can be computed here."""
    return next(types.collated_parts("key", description), None) is None
