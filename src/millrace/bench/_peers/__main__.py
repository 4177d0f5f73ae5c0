"""The process of one peer: commands come in on stdin, answers go out on stdout, one line each.

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
    kind, workdir, memory = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Before the first command, so that the sides start at the same time.
    engine = make_engine(kind, Path(workdir), memory)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"value": getattr(engine, f"do_{command}")(**arguments)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    engine.close()


if __name__ == "__main__":
    main()
