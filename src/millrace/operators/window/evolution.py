"""Which changes of a window operator a location can follow.

Aggregates may be added, as in a plain aggregate, and so may the emission change: both concern what
comes. The windows themselves may not, because state has panes of the old ones. Of windows of
several lengths, those shorter than the longest may come and go: their panes are there.
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
    if old["window"] != new["window"] or ("lengths" in old) != ("lengths" in new):
        raise SchemaChangedError(
            f"the windows of operator {name!r} were {_in_words(old)} and are now "
            f"{_in_words(new)}. {ADVICE}"
        )


def _in_words(spec: dict[str, Any]) -> str:
    several = "several lengths up to " if "lengths" in spec else ""
    return f"{several}{Windows.from_json(spec['window'])}"
