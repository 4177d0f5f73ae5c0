"""Operators: stateful steps, as pure functions from (replica, rows) to (changed rows, output)."""

from __future__ import annotations

from typing import Any

from millrace.errors import NewerFormatError, SchemaChangedError
from millrace.ids import OperatorName
from millrace.operators import aggregate, evolution
from millrace.operators.aggregate import AggregateOperator
from millrace.operators.operator import Change, Moment, Operator, TableChange, TableLayout


def from_spec(name: OperatorName, spec: dict[str, Any], *, ansi: bool = True) -> Operator:
    """The operator a spec describes."""
    if spec["kind"] == aggregate.KIND:
        return AggregateOperator.from_spec(name, spec, ansi=ansi)
    raise NewerFormatError(
        f"operator {name!r} is a {spec['kind']!r}, which this Millrace does not know. Upgrade it."
    )


def check_change(name: OperatorName, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise `SchemaChangedError` unless state written under `old` can go on under `new`."""
    if old["kind"] != new["kind"]:
        raise SchemaChangedError(
            f"operator {name!r} was {old['kind']!r} and is now {new['kind']!r}. Start the query "
            "with its old definition, or give the changed one a new checkpointLocation."
        )
    if old["kind"] == aggregate.KIND:
        aggregate.check_change(name, old, new)
    else:
        evolution.check_change(name, old, new)


__all__ = [
    "AggregateOperator",
    "Change",
    "Moment",
    "Operator",
    "TableChange",
    "TableLayout",
    "check_change",
    "from_spec",
]
