"""Dicts and lists that cannot be changed: values of a state that many keys share.

They compare, print, copy and pickle as plain ones; a copy can be changed.
"""

from __future__ import annotations

import copy
from typing import Any, NoReturn

from millrace.errors import StateAccessError


def _refuse(self: Any, *_: object, **__: object) -> NoReturn:
    raise StateAccessError(
        "a value of a broadcast state was changed in place. Broadcast state is read-only: take a "
        "copy, copy.deepcopy(value), to work with."
    )


class ReadOnlyDict(dict[Any, Any]):
    """A struct or a map."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    copy = __copy__

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """An array."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = _refuse
    reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    copy = __copy__

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """The same value, with dicts and lists that refuse to be changed."""
    if isinstance(value, dict):
        return ReadOnlyDict((key, read_only(item)) for key, item in value.items())
    if isinstance(value, list):
        return ReadOnlyList(map(read_only, value))
    return value
