"""The demonstration as a user runs it: to its end, and until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.browser import document
from tests.conftest import ROOT
from tests.waiting import DEADLINE

import millrace as mr
from millrace_lab.processes import members

pytestmark = [pytest.mark.cluster, pytest.mark.browser]

QUICK = ("--headless", "--rows-per-epoch", "2000")


@contextmanager
def demo(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "millrace_lab", "demo", *QUICK, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": path},
        # A group of its own, so that an interrupt reaches what a terminal's would, and not pytest.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """The lines up to and with one that has these words."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended without {words!r}:\n{''.join(lines)}")


@pytest.mark.stress
def test_it_rescales_loses_an_executor_answers_and_agrees_with_a_batch(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    with demo(tmp_path, "--minutes", "0", "--keep", str(keep)) as process:
        lines = read_until(process, "the live page is")
        url = lines[-1].split()[-1]
        lines += read_until(process, "SIGKILL to executor-")
        # All of the time there was: on a slow machine the rescale is long over.
        html = document(f"{url}?seconds=0", tmp_path / "profile")
        assert re.search(r'<text class="tag k-rescale"[^>]*>rescale 2 → 4<', html)
        cells = re.findall(r'<i [^>]*title="key group (\d+): executor-\d+"', html)
        assert [int(group) for group in cells] == list(range(256))
        rest, _ = process.communicate(timeout=DEADLINE)
        assert members(process.pid) == []
    output = "".join(lines) + rest
    assert process.returncode == 0, output
    assert "rescaled 2 → 4 while the stream went on" in output
    assert "key groups went to others, and epochs went on" in output
    assert "SQL on the state of epoch" in output
    assert "→ 2 while the stream went on" in rest
    assert "keys): equal\n" in rest
    assert "WARN" not in output
    # It is equal because there was something to compare.
    state = mr.open(str(keep / "location"))
    assert state.epoch >= 8
    assert sum(state.to_arrow("totals")["n"].to_pylist()) > 0.8 * 2000 * state.epoch


@pytest.mark.stress
def test_ctrl_c_is_clean(tmp_path: Path) -> None:
    with demo(tmp_path, "--minutes", "10") as process:
        # Spark is there, and the first epoch under way.
        seen = read_until(process, "the live page is")
        assert list(tmp_path.rglob("millrace-*.jar")) != []
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=DEADLINE)
        assert members(process.pid) == []
    output = "".join(seen) + rest
    assert process.returncode == 130, output
    assert "interrupted; nothing is left running" in rest
    assert "Traceback" not in output
    assert "Exception" not in output
    assert list(tmp_path.glob("millrace-demo-*")) == []
    assert list(tmp_path.rglob("millrace-*.jar")) == []
