"""`bench peers` without its engines: the job, the protocol, environments, costs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pytest

from millrace_lab import processes
from millrace_lab.bench import BenchmarkError, _environments, peers
from millrace_lab.bench._foreign.engines import job
from millrace_lab.bench._foreign.engines.protocol import serve
from millrace_lab.bench._oracle_totals import counted, difference, expected
from millrace_lab.bench._peer_sides import BY_NAME, MILLRACE, NAMES
from millrace_lab.bench._side_process import SideProcess
from millrace_lab.bench._usage import Sample, cost, sample, sampling

FOREIGN = Path(job.__file__).parent.parent


class Said:
    """Stands for the lines on the screen."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    say = step


def environment(folder: Path, name: str) -> None:
    """One that has nothing but this interpreter."""
    (folder / name / "bin").mkdir(parents=True)
    (folder / name / "bin" / "python").symlink_to(sys.executable)
    (folder / name / _environments.STAMP).touch()


def oracle(rows: int, keys: int) -> list[tuple[int, int, int]]:
    totals: dict[int, tuple[int, int]] = {}
    for v in range(rows):
        n, total = totals.get(job.key_of(v, keys), (0, 0))
        totals[job.key_of(v, keys)] = n + 1, total + job.amount_of(v)
    return [(key, *totals[key]) for key in sorted(totals)]


def test_the_job_is_the_same_in_sql_in_python_and_on_arrays() -> None:
    rows, keys = 3_000, 70
    in_sql = duckdb.sql(
        f"SELECT k, count(*), sum(amount) FROM (SELECT {job.KEY_SQL.format(keys=keys)} AS k, "
        f"{job.AMOUNT_SQL} AS amount FROM range({rows}) AS numbers(v)) GROUP BY k ORDER BY k"
    ).fetchall()
    wanted = oracle(rows, keys)
    assert in_sql == wanted
    assert [tuple(row) for row in expected(rows, keys).tolist()] == wanted


def test_rows_far_down_the_sequence_have_keys_without_overflow() -> None:
    keys = 1_000_000
    far = np.array([2**31, 10**10, 10**13], dtype=np.int64)
    in_sql = duckdb.sql(
        f"SELECT {job.KEY_SQL.format(keys=keys)} FROM (SELECT unnest({far.tolist()}) AS v)"
    ).fetchall()
    assert [key for (key,) in in_sql] == [job.key_of(int(v), keys) for v in far]


def test_keys_are_made_in_order_and_then_drawn_from_all() -> None:
    keys = 1_000
    assert [job.key_of(v, keys) for v in range(keys)] == list(range(keys))
    drawn = np.bincount([job.key_of(v, keys) for v in range(keys, 101 * keys)], minlength=keys)
    # 100 on average, as by chance: the standard deviation is 10.
    assert drawn.min() > 50
    assert drawn.max() < 150
    assert 8 < drawn.std() < 12


def test_counts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    counts = [(0, 2, 2**40), (7, 1, -3)]
    assert job.write_counts(str(path), counts) == 2
    assert job.read_counts(str(path)) == counts
    assert counted(path).tolist() == [list(row) for row in counts]


def test_differences_are_named() -> None:
    wanted = expected(50, 10)
    assert difference(wanted.copy(), wanted) is None
    assert difference(wanted[1:], wanted) == "it has 9 keys, and there are 10"
    wrong = wanted.copy()
    wrong[3, 1] += 1
    assert difference(wrong, wanted) == (
        f"1 of 10 keys differ; the first has (key, count, sum) {tuple(wrong[3].tolist())} "
        f"instead of {tuple(wanted[3].tolist())}"
    )


def test_marks_are_shared(tmp_path: Path) -> None:
    path = str(tmp_path / "marks")
    read, first, second = job.Marks(path, 2), job.Marks(path, 2), job.Marks(path, 2)
    assert read.get() == (0.0, 0)
    first.put(0, 10, 5.0)
    second.put(1, 7, 4.0)
    assert read.get() == (5.0, 17)


def test_windows_begin_after_the_warm_up_and_the_filling() -> None:
    marks = iter([(0.0, 0), (1.0, 5), (2.0, 50), (4.0, 90), (5.0, 100), (5.5, 130), (6.0, 140)])
    windows = job.measure(
        lambda: next(marks), lambda: True, fill=80, warm_s=2, windows=2, window_s=1
    )
    assert windows == [
        {"rows": 10, "begin": 4.0, "end": 5.0},
        {"rows": 40, "begin": 5.0, "end": 6.0},
    ]


def test_a_job_that_ends_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="has ended before"):
        job.measure(lambda: (0.0, 0), lambda: False, fill=0, warm_s=0, windows=1, window_s=1)


class Doubler:
    def do_double(self, value: int) -> int:
        return 2 * value


def test_a_side_answers_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [["it", "double", {"value": 3}], ["it", "halve", {}], ["it", "double", {"value": 1}]]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(c) + "\n" for c in commands)))
    channel = io.StringIO()
    serve({"it": Doubler()}, channel)
    first, second, third = (json.loads(line) for line in channel.getvalue().splitlines())
    assert first == {"value": 6}
    assert "do_halve" in second["error"]
    assert third == {"value": 2}


def test_the_foreign_package_needs_nothing_of_millrace() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['millrace', 'numpy', 'pyspark'])); "
        "import engines.__main__, engines.protocol, engines.job, engines.workers"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(FOREIGN)}, check=True
    )


def test_an_environments_side_is_started_and_its_failure_is_told(tmp_path: Path) -> None:
    environment(tmp_path, "odd")
    with (
        _environments.start(tmp_path, "odd", "nonsense", tmp_path / "work") as process,
        pytest.raises(BenchmarkError, match="there is no side 'nonsense'"),
    ):
        process.call("ready")


def test_a_killed_peer_leaves_nothing_running(tmp_path: Path) -> None:
    child = "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(600)"
    code = (
        "import subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); "
        "print('{\"value\": 1}', flush=True); child.wait()"
    )
    with SideProcess("odd", tmp_path, program=(sys.executable, "-c", code)) as process:
        assert process.call("anything") == 1
        assert len(processes.members(process.session)) == 2
        process.kill()
        with pytest.raises(BenchmarkError, match="ended without an answer"):
            process.call("more")
    assert processes.members(process.session) == []


def test_sides_of_missing_environments_are_told_with_what_to_do(tmp_path: Path) -> None:
    environment(tmp_path, "flink")
    options = peers.Options(environments=tmp_path)
    sides, missing = peers.available(options)
    names = [side.name for side in sides]
    assert "flink-sql-heap" in names
    assert "pyspark-row" in names
    assert missing == {"bytewax": ["bytewax"], "pathway": ["pathway"]}
    told = _environments.missing_message(tmp_path, missing)
    assert f"{tmp_path / 'bytewax'}: bytewax" in told
    assert "make peers" in told
    assert peers.why_not(options) is None


def test_an_environment_that_was_not_finished_is_missing(tmp_path: Path) -> None:
    environment(tmp_path, "flink")
    (tmp_path / "flink" / _environments.STAMP).unlink()
    assert not _environments.exists(tmp_path, "flink")
    assert "make peers" in (peers.why_not(peers.Options(environments=tmp_path)) or "")


def test_without_anyone_to_compare_with_there_is_no_run(tmp_path: Path) -> None:
    said = Said()
    options = peers.Options(sides=("bytewax",), environments=tmp_path)
    with pytest.raises(BenchmarkError, match="nothing to measure Millrace beside"):
        peers.run(options, tmp_path / "work", said)  # type: ignore[arg-type]
    assert "make peers" in said.lines[0]


def test_only_the_sides_of_millrace_that_are_needed_run(tmp_path: Path) -> None:
    def names(*sides: str) -> list[str]:
        return [s.name for s in peers.available(peers.Options(sides=sides))[0]]

    assert names("spark-hdfs") == ["millrace-aggregate", "spark-hdfs"]
    assert names("pyspark-row") == ["millrace-processor", "pyspark-row"]


def test_every_side_is_compared_with_one_of_millraces() -> None:
    assert {side.beside for side in BY_NAME.values()} == set(MILLRACE)
    assert len(NAMES) == len(set(NAMES))


def test_costs_are_cut_to_the_measured_time() -> None:
    samples = [
        Sample(10.0, 100.0, 50),
        Sample(12.0, 104.0, None),
        Sample(14.0, 105.0, 70),
        Sample(16.0, 109.0, 60),
    ]
    assert cost(samples, 11.0, 15.0).cpu_seconds == pytest.approx(5.0)
    assert cost(samples, 11.0, 15.0).peak_bytes == 70
    assert cost(samples, 14.5, 15.0).peak_bytes == 70
    assert cost(samples, 9.0, 17.0).cpu_seconds == pytest.approx(9.0)


def test_the_cpu_of_a_session_that_ends_does_not_go_back() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", burn],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with sampling(process.pid) as samples:
            while not samples():
                time.sleep(0.01)
            process.kill()
            process.wait()
            taken = len(samples())
            while len(samples()) < taken + 2:
                time.sleep(0.01)
    # The clock behind it ticks a hundred times a second.
    assert samples()[-1].cpu >= 0.25


def test_costs_count_all_processes_of_a_session_and_ended_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); "
        "print('done', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            found = sample(process.pid, memory=True)
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert found.cpu >= 0.25
    assert found.memory is not None
    assert found.memory > 1_000_000
    assert sample(process.pid, memory=False).cpu == 0
