"""What may be asked of a query. Pure: the same checks for a call, a command and an old request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import check_parallelism
from millrace.reconfigure.slots import Executor
from millrace.reconfigure.strategies import check_strategy


def check_request(
    kind: str,
    details: Mapping[str, object],
    assignments: Mapping[OperatorName, Assignment],
    executors: Collection[Executor],
    drained: Collection[str],
) -> None:
    """Raise if a request makes no sense to this query now."""
    operators = operators_of(details, assignments)
    key_groups = assignments[operators[0]].key_groups
    if kind != "cancel":
        check_strategy(details.get("strategy", "live"))
    if kind == "rescale":
        check_parallelism(details.get("parallelism"), key_groups)
    elif kind == "move":
        check_executor(details.get("to"), executors)
        if details.get("to") in drained:
            raise UsageError(
                f"{details.get('to')} is drained; nothing is moved there until undrain."
            )
        _check_groups(details.get("key_groups"), key_groups)
    elif kind in ("drain", "undrain"):
        check_executor(details.get("executor"), executors)
        left = {e.name for e in executors} - set(drained)
        if kind == "drain" and left <= {details.get("executor")}:
            raise UsageError(nowhere_else(details.get("executor")))
    elif kind != "cancel":
        raise UsageError(f"there is no request of kind {kind!r}.")


def nowhere_else(executor: object) -> str:
    """Why an executor cannot be drained."""
    return (
        f"{executor} is the only executor that is left; there is nowhere to move its key groups "
        "to. Add an executor first."
    )


def check_executor(name: object, executors: Iterable[Executor]) -> None:
    known = [e.name for e in executors]
    if name not in known:
        raise UsageError(
            f"there is no executor {name!r}. Those alive are {', '.join(known) or 'none'}."
        )


def operators_of(
    details: Mapping[str, object], assignments: Mapping[OperatorName, Assignment]
) -> list[OperatorName]:
    """The operators that a request is about: all, unless it names one."""
    name = details.get("operator")
    if name is None:
        return list(assignments)
    if name not in assignments:
        raise UsageError(
            f"there is no operator {name!r}. The query has {', '.join(map(repr, assignments))}."
        )
    return [OperatorName(str(name))]


def _check_groups(groups: object, key_groups: int) -> None:
    if not isinstance(groups, list) or not groups:
        raise UsageError("key_groups= names no key group. Give a list of their numbers.")
    wrong = [g for g in groups if type(g) is not int or not 0 <= g < key_groups]
    if wrong:
        raise UsageError(
            f"key_groups= names {wrong[:5]}: key groups have the numbers 0 to {key_groups - 1}."
        )
