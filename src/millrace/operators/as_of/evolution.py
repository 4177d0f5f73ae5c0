"""Which changes of an as-of join a location can follow: added columns, and a shorter tolerance.

A longer one would need rows that are gone.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.evolution import ADVICE, check_keys
from millrace.operators.join.evolution import check_columns
from millrace.operators.join.layout import LEFT, RIGHT


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    before, now = old["tolerance"], new["tolerance"]
    if before is not None and (now is None or now > before):
        after = "none" if now is None else f"{now} microseconds"
        raise SchemaChangedError(
            f"the tolerance of operator {name!r} was {before} microseconds and is now {after}: "
            f"rows that a longer one needs are gone. {ADVICE}"
        )
    for side in (LEFT, RIGHT):
        check_columns(name, side, old[side], new[side])
