"""Which changes of an operator on graphs a location can follow: none of what its state depends on.

Whether the triangles of each vertex are emitted may change: nothing is kept for that.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.evolution import ADVICE, check_keys

_WORDS = {
    "directed": "directed=",
    "sides": "bipartite()",
    "vertex": "the type of vertices",
    "colours": "colours=",
    "sample": "sample=",
}


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    for part, words in _WORDS.items():
        if part in new and old[part] != new[part]:
            raise SchemaChangedError(
                f"operator {name!r}: {words} was {old[part]!r} and is now {new[part]!r}. {ADVICE}"
            )
