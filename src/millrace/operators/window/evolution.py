"""Which changes of a window operator a location can follow.

Aggregates may be added, as in a plain aggregate, and so may the emission change: both concern what
comes. The windows themselves may not, because state has panes of the old ones.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.aggregate import evolution as aggregate_evolution
from millrace.operators.evolution import ADVICE
from millrace.operators.window.panes import Windows


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    aggregate_evolution.check_change(name, old, new)
    if old["window"] != new["window"]:
        raise SchemaChangedError(
            f"the windows of operator {name!r} were {Windows.from_json(old['window'])} and are now "
            f"{Windows.from_json(new['window'])}. {ADVICE}"
        )
