"""The process of a side and its guests; see `_foreign.engines.protocol` for how they are asked."""

from __future__ import annotations

import sys
from pathlib import Path

from millrace_lab.bench._foreign.engines.protocol import answers_channel, serve
from millrace_lab.bench._sides.kinds import make_engine


def main() -> None:
    kind, workdir, memory, *guests = sys.argv[1:]
    channel = answers_channel()
    # Before the first command, so that the sides start at the same time.
    host = make_engine(kind, Path(workdir), memory)
    engines = {kind: host}
    for guest in guests:
        engines[guest] = make_engine(guest, Path(workdir).parent / guest, memory)
    serve(engines, channel)
    # Guests have the same session.
    host.close()


if __name__ == "__main__":
    main()
