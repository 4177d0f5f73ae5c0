"""The names of the package: complete, lazy, and typed.

What an import costs is not measured here: which modules it loads is.
"""

from __future__ import annotations

import ast
import importlib
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.reading.streams import Counted, draw

import millrace

HEAVY = ("pyspark", "numba", "pandas", "duckdb")


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = Counted(str(tmp_path_factory.mktemp("names") / "location"))
    made.send(draw(random.Random(3), 40))
    return made.url


def loaded(steps: str, location: str) -> list[set[str]]:
    """Which of the heavy modules a fresh interpreter has loaded after each line."""
    look = f"print(*(m for m in {HEAVY} if m in sys.modules))"
    program = "\n".join(["import sys", *(f"{s}\n{look}" for s in steps.strip().splitlines())])
    done = subprocess.run(
        [sys.executable, "-c", program, location], capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in done.stdout.split("\n")[:-1]]


def test_importing_and_opening_loads_nothing_heavy(location: str) -> None:
    steps = """
import millrace as mr
r = mr.open(sys.argv[1])
assert (r.epoch, r.operators, r.tables()) == (1, ["totals"], [])
assert r.schema().names == ["room", "device", "n", "total", "average"]
assert r.keys() == ["room", "device"] and r.committed_at and r.watermark_ms is None
assert r.changes_schema().names[-2:] == ["_change", "_epoch"] and "totals" in repr(r)
r.close()
"""
    assert loaded(steps, location) == [set()] * 7


@pytest.mark.parametrize(
    "read",
    [
        "assert r.to_arrow().num_rows",
        "assert r.sql('select * from totals').num_rows",
        "assert r.sql('select * from millrace_operators').num_rows",
        "assert r.get([('hall', 1)]).num_rows",
        "assert r.changes(0).num_rows",
    ],
)
def test_reading_never_loads_pyspark(location: str, read: str) -> None:
    steps = f"""
import millrace as mr; r = mr.open(sys.argv[1])
{read}
"""
    before, after = loaded(steps, location)
    assert not before
    assert "pyspark" not in after


def test_errors_and_durations_are_light(location: str) -> None:
    steps = """
from millrace import MillraceError, __version__
import millrace; assert millrace.seconds(2)
"""
    assert loaded(steps, location) == [set(), set()]


def test_every_public_name_is_there() -> None:
    for name in millrace.__all__:
        assert getattr(millrace, name) is not None
    assert set(millrace.__all__) <= set(dir(millrace))
    assert "__getattr__" in dir(millrace)
    scope: dict[str, object] = {}
    exec("from millrace import *", scope)
    assert set(millrace.__all__) <= set(scope)
    with pytest.raises(AttributeError, match="no attribute 'strem'"):
        millrace.strem  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'strem'"):
        exec("from millrace import strem")


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(str(millrace.__file__)).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {"__version__"}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = importlib.import_module(str(node.module))
        for alias in node.names:
            public = alias.asname or alias.name
            assert getattr(millrace, public) is getattr(module, alias.name)
            seen.add(public)
    assert seen == set(millrace.__all__)
    assert sorted(millrace.__all__) == millrace.__all__


PROGRAM = """
import millrace as mr

with mr.open("/data/totals", epoch=3) as reader:
    rows: int = reader.sql("select 1").num_rows

class Visits(mr.Processor):
    count = mr.Value("long")

stream: mr.Stream
counted: mr.Stream = stream.key_by("user").aggregate(n=mr.count())
reveal_type(mr.open)
reveal_type(mr.seconds(3))
mr.strem
"""

SEEN = """
program.py:12: note: Revealed type is "def (location: str, *, epoch: int | None =, as_of: \
datetime.datetime | str | None =, lease: bool =) -> millrace.reading.reader.Reader"
program.py:13: note: Revealed type is "datetime.timedelta"
program.py:14: error: Module has no attribute "strem"; maybe "stream"?  [attr-defined]
Found 1 error in 1 file (checked 1 source file)
"""


@pytest.mark.stress
def test_a_users_program_is_checked(tmp_path: Path) -> None:
    assert (Path(str(millrace.__file__)).parent / "py.typed").exists()
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = ["-m", "mypy", "--strict", "--no-incremental", "--follow-imports=silent"]
    done = subprocess.run(
        [sys.executable, *arguments, "--config-file=", "program.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(Path(str(millrace.__file__)).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == SEEN.lstrip()
