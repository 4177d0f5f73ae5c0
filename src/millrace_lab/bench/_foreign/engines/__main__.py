"""The process of a foreign side: `python -m engines SIDE WORKDIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .protocol import answers_channel, serve


def make_side(name: str, workdir: Path) -> Any:
    """Imports are local: an environment has only one of them."""
    if name.startswith(("flink-sql", "pyflink")):
        from .flink import FlinkSide

        return FlinkSide(name, workdir)
    if name.startswith("flink-operators"):
        from .flink_cases import FlinkCases

        return FlinkCases(name, workdir)
    if name.startswith("flink-nexmark"):
        from .flink_nexmark import FlinkNexmark

        return FlinkNexmark(name, workdir)
    if name == "bytewax":
        from .bytewax import BytewaxSide

        return BytewaxSide(workdir)
    if name == "pathway":
        from .pathway import PathwaySide

        return PathwaySide(workdir)
    raise ValueError(f"there is no side {name!r}")


def main() -> None:
    name, workdir = sys.argv[1:]
    channel = answers_channel()
    side = make_side(name, Path(workdir))
    serve({name: side}, channel)
    side.close()


if __name__ == "__main__":
    main()
