"""What options of benchmarks may be: sizes such as 5m, and lists of names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from millrace_lab.bench._sizes import parse_size, parse_sizes


class Size(click.ParamType[int]):
    """A number such as 1000000, 100k or 5m."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Sizes(click.ParamType[tuple[int, ...]]):
    """Numbers such as 100k,5m."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(parse_sizes(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Names(click.ParamType[tuple[str, ...]]):
    """A list of known names."""

    def known(self) -> Iterable[str]:
        raise NotImplementedError

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        known = tuple(self.known())
        names = tuple(name.strip() for name in str(value).split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            self.fail(f"{unknown[0]!r}: choose from {', '.join(known)}", param, ctx)
        return names


class Strategies(Names):
    """Names such as live,pause."""

    name = "strategies"

    def known(self) -> Iterable[str]:
        from millrace.reconfigure.strategies import STRATEGIES

        return STRATEGIES


class Stores(Names):
    """Names such as local,s3."""

    name = "stores"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench.stores import STORES

        return STORES


class KafkaSides(Names):
    """Names such as millrace,spark."""

    name = "sides"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench.end_to_end import SIDES

        return SIDES


class RealTimeSides(Names):
    """Names such as millrace,spark."""

    name = "sides"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench.realtime import SIDES

        return SIDES


class Backends(Names):
    """Names such as millrace,rocksdb."""

    name = "backends"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench._backends import BACKENDS

        return BACKENDS


class Kinds(Names):
    """Names such as value,map."""

    name = "kinds"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench._backends import KINDS

        return KINDS


class Cases(Names):
    """Names such as tumbling,hopping."""

    name = "cases"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench._foreign.engines.cases import CASES

        return [case.name for case in CASES]


class Patterns(Names):
    """Names such as jump,rising."""

    name = "patterns"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench._foreign.engines.cases import PATTERNS

        return [case.name for case in PATTERNS]


class Queries(Names):
    """Names such as q5,q7."""

    name = "queries"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench.nexmark import STATEFUL

        return STATEFUL


class Sides(Names):
    """Names such as spark-rocksdb,flink-sql-heap."""

    name = "sides"

    def known(self) -> Iterable[str]:
        from millrace_lab.bench._peer_sides import NAMES

        return NAMES
