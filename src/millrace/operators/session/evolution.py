"""Which changes of a session operator a location can follow.

Aggregates may be added, as in a plain aggregate, and so may the emission change. The gap may not:
sessions in state end as long after their last row as the old one said.
"""

from __future__ import annotations

from typing import Any

from millrace.errors import SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators.aggregate import evolution as aggregate_evolution
from millrace.operators.evolution import ADVICE
from millrace.operators.window.panes import in_words


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    aggregate_evolution.check_change(name, old, new)
    if old["gap"] != new["gap"]:
        raise SchemaChangedError(
            f"the sessions of operator {name!r} had a gap of {in_words(old['gap'])} and now "
            f"have one of {in_words(new['gap'])}. {ADVICE}"
        )
