"""Operators: stateful steps, as pure functions from (replica, rows) to (changed rows, output)."""

from millrace.operators.operator import Change, Moment, Operator, TableChange, TableLayout

__all__ = ["Change", "Moment", "Operator", "TableChange", "TableLayout"]
