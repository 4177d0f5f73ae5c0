"""How task state follows a change of the shards. Pure: no files, no Spark.

A value belongs to the shard that set it, and so to the key groups that this shard owned. In an
epoch with another assignment, those key groups may have one owner or several:

- one: the value goes there whole;
- several: `split(value, shares)` gives each a part. `shares` says how many of the key groups each
  takes, in order of the first key group that it takes.

What a shard gets is put in order of the key groups it came from; if that is more than one value,
`merge(values)` makes them one. So a shard's value follows from the values and their key groups
before, the new assignment, and the rules; every shard computes its own part of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace.errors import MillraceError, ProcessorError, StateTypeError
from millrace.operators.process.shared.declarations import Merge, Split


@dataclass(frozen=True)
class Holding:
    """A value, and the key groups of the shard that held it, ascending."""

    groups: tuple[int, ...]
    value: Any


def redistributed(
    before: Sequence[Holding],
    owners: Sequence[int],
    shard: int,
    split: Split,
    merge: Merge,
    what: str,
) -> Any:
    """A shard's value under a new assignment (`owners`: key group -> shard); None if it gets none.

    `what` names the state in errors.
    """
    parts = []
    for holding in sorted(before, key=lambda h: h.groups):
        shares: dict[int, int] = {}
        for group in holding.groups:
            shares[owners[group]] = shares.get(owners[group], 0) + 1
        if shard in shares:
            value = holding.value
            if len(shares) > 1:
                numbers = list(shares.values())
                pieces = _split(split, value, numbers, what)
                value = pieces[list(shares).index(shard)]
            if value is not None:
                parts.append(value)
    if len(parts) < 2:
        return parts[0] if parts else None
    return _merged(merge, parts, what)


def _split(split: Split, value: Any, shares: list[int], what: str) -> list[Any]:
    try:
        pieces = split(value, list(shares))
    except MillraceError:
        raise
    except Exception as error:
        raise ProcessorError(
            f"the split rule of {what} raised {type(error).__name__}: {error}; for the value "
            f"{value!r} and the shares {shares}. {_ADVICE}"
        ) from error
    if not isinstance(pieces, list | tuple) or len(pieces) != len(shares):
        raise StateTypeError(
            f"the split rule of {what} returned {pieces!r} for the shares {shares}; it should "
            f"return a list of {len(shares)} values. {_ADVICE}"
        )
    return list(pieces)


def _merged(merge: Merge, parts: list[Any], what: str) -> Any:
    try:
        value = merge(list(parts))
    except MillraceError:
        raise
    except Exception as error:
        raise ProcessorError(
            f"the merge rule of {what} raised {type(error).__name__}: {error}; for the values "
            f"{parts!r}. {_ADVICE}"
        ) from error
    if value is None:
        raise StateTypeError(
            f"the merge rule of {what} returned None for {parts!r}; it should return the new "
            f"value. {_ADVICE}"
        )
    return value


_ADVICE = "The epoch was not committed: fix the rule and start the query again."
