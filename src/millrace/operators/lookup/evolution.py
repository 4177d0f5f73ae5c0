"""Which changes of a lookup a location can follow: all but those of the key and of what is kept.

Columns may be added to the right stream; rows that were stored before have NULL in them. Nothing is
kept of the left stream, so it may change as it likes, and so may `how`.
"""

from __future__ import annotations

from typing import Any

from millrace.ids import OperatorName
from millrace.operators.evolution import check_keys
from millrace.operators.join.evolution import check_columns
from millrace.operators.join.layout import RIGHT


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    check_keys(name, old, new)
    check_columns(name, RIGHT, old[RIGHT], new[RIGHT])
