"""How a side talks to the benchmark: commands come in on stdin, answers go out on stdout, one line
of JSON each.

A command is `[side, name, arguments]` and calls that side's method `do_<name>`; an answer is
`{"value": ...}` or `{"error": "..."}`. Engines print to stdout as they like, so the channel of the
answers is put aside first, and what is printed goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any, TextIO


def answers_channel() -> TextIO:
    """The channel for answers; from now on what is printed goes to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return channel


def serve(sides: Mapping[str, Any], channel: TextIO) -> None:
    """Do what each command says, until there are no more."""
    for line in sys.stdin:
        asked, command, arguments = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"value": getattr(sides[asked], f"do_{command}")(**arguments)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()
