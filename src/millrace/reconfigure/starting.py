"""What a query starts with: shards as its program says, else as they were.

Where `parallelism=` is left out, a query goes on with the shards it was last told to have, by its
program or by a rescale: the manifests know. Where it is given, it wins over what a rescale has done
meanwhile, and that is not done in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from millrace.errors import UsageError
from millrace.ids import OperatorName
from millrace.keygroups import Assignment
from millrace.keygroups.assignment import check_parallelism
from millrace.log import Trail

_log = logging.getLogger("millrace")


def starting_assignments(
    location: str,
    trail: Trail,
    names: Sequence[OperatorName],
    parallelism: int | Mapping[str, int] | None,
    default: int,
) -> dict[OperatorName, Assignment]:
    """The assignment of each operator's next epoch; `default` shards where nothing says more."""
    if isinstance(parallelism, Mapping):
        unknown = sorted(set(parallelism) - set(names))
        if unknown:
            raise UsageError(
                f"parallelism= names {', '.join(map(repr, unknown))}; the query's operators are "
                f"{', '.join(map(repr, names))}."
            )
    key_groups = trail.key_groups
    found = {}
    for name in names:
        log = trail.operators.get(name)
        last = log.assignment if log is not None else None
        wanted = trail.wanted.get(name, last.shards) if last is not None else None
        asked = parallelism.get(name) if isinstance(parallelism, Mapping) else parallelism
        if asked is None:
            asked = wanted if wanted is not None else min(default, key_groups)
        shards = check_parallelism(asked, key_groups)
        if wanted is not None and shards != wanted:
            _log.warning(
                "%s: operator %r was to have %d shards up to epoch %d; it goes on with %d, because "
                "parallelism= says so. Leave parallelism= out to go on with what was last set.",
                location,
                name,
                wanted,
                trail.epoch,
                shards,
            )
        if last is None or last.shards != shards:
            last = Assignment.even(key_groups, shards)
        found[name] = last
    return found
