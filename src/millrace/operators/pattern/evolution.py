"""Which changes of a pattern a location can follow.

Partial matches in state wait in states of the pattern as it was, and hold the columns that it read.
So the pattern, its time and its columns stay; columns may be added. Conditions, what follows a
match and what a match says may change, and hold for the rows that are looked at from then on.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.evolution import ADVICE, check_keys
from millrace.operators.join.evolution import check_columns
from millrace.operators.window.panes import in_words


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    if old["pattern"] != new["pattern"]:
        raise SchemaChangedError(
            f"operator {name!r} looks for another pattern than the one that its partial matches "
            f"are of. {ADVICE}"
        )
    if old["within"] != new["within"]:
        raise SchemaChangedError(
            f"the matches of operator {name!r} were within {in_words(old['within'])} and are now "
            f"within {in_words(new['within'])}. {ADVICE}"
        )
    if old["bits"] != new["bits"]:
        raise SchemaChangedError(
            f"operator {name!r} had conditions on the row itself for "
            f"{', '.join(old['bits']) or 'no variable'} and now has them for "
            f"{', '.join(new['bits']) or 'none'}: rows in state have been tested for the former. "
            f"{ADVICE}"
        )
    check_columns(name, "only", old["columns"], new["columns"])
