"""Two starts of a local cluster, in two processes, are in different seconds."""

from __future__ import annotations

import subprocess
import sys
import time

START = """
import time
from millrace_lab.local_cluster import starting
with starting():
    print(int(time.time()), flush=True)
"""


def test_no_two_start_in_the_same_second() -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", START], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    seconds = [int(program.communicate()[0]) for program in programs]
    assert len(set(seconds)) == 3
    assert int(time.time()) > max(seconds)
