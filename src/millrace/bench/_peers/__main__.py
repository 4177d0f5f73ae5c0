"""The process of a peer and its guests: commands come in on stdin, answers go out on stdout, one
line each.

Spark and its JVM print to stdout as they like, so the answers' channel is put aside first and what
is printed goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from millrace.bench._peers.kinds import make_engine


def main() -> None:
    kind, workdir, memory, *guests = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Before the first command, so that the sides start at the same time.
    host = make_engine(kind, Path(workdir), memory)
    engines = {kind: host}
    for guest in guests:
        engines[guest] = make_engine(guest, Path(workdir).parent / guest, memory)
    for line in sys.stdin:
        asked, command, arguments = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"value": getattr(engines[asked], f"do_{command}")(**arguments)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Guests have the same session.
    host.close()


if __name__ == "__main__":
    main()
