"""Names of an operator's columns, made of the names that a plan has.

A plan may have columns without usable names, or several of the same name. State has columns that
people query, so a plan's name is kept wherever it can be, and it must not change between starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from millrace.log.segment import DELETED, HI, LO
from millrace.operators.session.layout import SESSION
from millrace.operators.window.layout import WINDOW, WINDOW_LENGTH

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

RESERVED = (HI, LO, DELETED, "name", "emit", "self")
"""Names that operators, or the calls that make them, use themselves."""
RESERVED_BY_TIME = (*RESERVED, WINDOW, WINDOW_LENGTH, SESSION, "is_final")
"""Names that operators of event time use."""


class Names:
    """Gives out names, each once; Spark's columns and state's tables do not tell case apart."""

    def __init__(self, taken: Iterable[str] = RESERVED) -> None:
        self._taken = {name.lower() for name in taken}

    def new(self, wanted: str, otherwise: str) -> str:
        """The wanted name if it is usable and free, else one made of `otherwise`."""
        name = wanted if _PLAIN.fullmatch(wanted) else otherwise
        chosen, number = name, 1
        while chosen.lower() in self._taken:
            number += 1
            chosen = f"{name}_{number}"
        self._taken.add(chosen.lower())
        return chosen
