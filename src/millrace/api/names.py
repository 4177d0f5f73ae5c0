"""Names of operators: they identify state in a location, so they must be valid and unique."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millrace.errors import DuplicateNameError, InvalidNameError
from millrace.ids import OperatorName
from millrace.spark.graph import upstream
from millrace.spark.steps import OperatorStep, Point

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def new_name(kind: str, given: str | None, inputs: Sequence[Point]) -> OperatorName:
    """The name of a new operator: the given one, or one that its kind and its place make."""
    name = given or f"{kind}-{max(map(_depth, inputs)) + 1}"
    if not _NAME.fullmatch(str(name)):
        raise InvalidNameError(
            f"{name!r} cannot be an operator's name: use letters, digits, '_', '-' and '.', "
            "at most 100, beginning with a letter or digit."
        )
    for point in upstream(inputs):
        if isinstance(point.step, OperatorStep) and point.step.operator.name == name:
            raise DuplicateNameError(
                f"two operators are called {name!r}. Give each its own name: it "
                "identifies the operator's state."
            )
    return OperatorName(name)


def _depth(end: Point) -> int:
    """How many steps lead to a point from the first operator on."""
    depths: dict[Point, int] = {}
    for point in upstream([end]):
        before = max((depths[read] for read in point.inputs), default=0)
        depths[point] = before if point.frame is not None else before + 1
    return depths[end]
