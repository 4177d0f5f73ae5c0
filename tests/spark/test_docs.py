"""The documentation is run: its Python, its output, its tables.

All Python blocks of a page run one after the other in one namespace, which has a Spark session and
some empty directories. A block whose fence says `no-run` is only compiled.
"""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.conftest import ROOT
from tests.waiting import DEADLINE

import millrace
from millrace import errors
from millrace_lab.servers.kafka import create_topic

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the line its body begins at."""

    info: tuple[str, ...]
    body: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        yield Block(tuple(match["info"].split()), match["body"], line)


def python_blocks(page: Path) -> list[Block]:
    """Those to run: a block that shows a file is run as that file."""
    found = [b for b in blocks(page) if b.info[:1] == ("python",)]
    return [b for b in found if not any(word.startswith("file=") for word in b.info)]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = FENCE.sub("", page.read_text())
    headings = (re.sub(r"[`*]", "", h).strip().lower() for h in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", h).replace(" ", "-") for h in headings}


LONG = ("kafka.md", "moving-state.md", "spark-tables.md", "state-engines.md")
KAFKA = "kafka.md"
REDIS = "state-engines.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.stress) if page.name in LONG else page
        for page in PAGES
        if python_blocks(page)
    ],
    ids=page_id,
)
def test_python_runs(
    page: Path, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    names: dict[str, Any] = {
        "__name__": "docs",
        "spark": spark,
        "work": tmp_path,
        "inbox": inbox,
        "location": str(tmp_path / "location"),
    }
    if page.name == KAFKA:
        names["servers"] = request.getfixturevalue("broker")
        for topic in ("visits", "totals"):
            create_topic(names["servers"], topic)
    if page.name == REDIS:
        names["redis_url"] = request.getfixturevalue("redis_server")
    try:
        for block in python_blocks(page):
            # Empty lines in front, so that a traceback has the page's line numbers.
            code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
            if "no-run" not in block.info:
                exec(code, names)
    finally:
        for query in spark.streams.active:
            query.stop()


def test_most_pages_have_python() -> None:
    assert sum(len(python_blocks(page)) for page in PAGES) >= 10
    skipped = [b for page in PAGES for b in python_blocks(page) if "no-run" in b.info]
    assert len(skipped) <= 2


def shown(word: str) -> dict[str, str]:
    """File -> the block of some page that shows it, or its output."""
    found = {}
    for page in PAGES:
        for block in blocks(page):
            for part in block.info:
                if part.startswith(f"{word}="):
                    found[part.partition("=")[2]] = block.body
    return found


def test_every_example_is_shown_with_its_output() -> None:
    files = {page_id(path): path for path in sorted(ROOT.glob("examples/*.py"))}
    assert len(files) >= 6
    assert shown("file").keys() == files.keys()
    assert shown("output-of").keys() | shown("output-like").keys() == files.keys()
    for name, code in shown("file").items():
        header, _, rest = files[name].read_text().partition('"""\n\n')
        assert header.startswith('"""')
        assert code == rest


def counts_of(printed: str) -> list[str]:
    """The counts that the first example prints; everything else in it must be as expected."""
    first, *rows = [line.split() for line in printed.splitlines()]
    assert first == ["device", "n"]
    assert [row[:2] for row in rows] == [["0", "0"], ["1", "1"], ["2", "2"]]
    return [count for _, _, count in rows]


def test_the_first_example_counts_every_row_once_while_it_is_rescaled(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "count.py")],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert run.returncode == 0, run.stderr
    for printed in (run.stdout, shown("output-like")["examples/count.py"]):
        # A batch has 100 rows of each device, and how many batches there are is up to the machine.
        (count,) = set(counts_of(printed))
        assert int(count) > 0
        assert int(count) % 100 == 0
    with millrace.open(str(tmp_path / "counts")) as state:
        shards = state.sql("SELECT shards FROM millrace_operators")["shards"].to_pylist()
    assert shards == [4]


@pytest.mark.parametrize(
    "name", ["fraud_rule", "online_features", "sessions", "totals", "word_count"]
)
def test_the_others_print_what_is_shown(
    name: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    finally:
        for query in spark.streams.active:
            query.stop()
    assert capsys.readouterr().out == shown("output-of")[f"examples/{name}.py"]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_id(page)} links to {path}"
        if anchor:
            assert anchor in anchors(target), f"{page_id(page)} links to {path}#{anchor}"


def test_every_error_is_documented() -> None:
    table = (ROOT / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"^\| `(\w+Error)` \|", table, re.MULTILINE))
    defined = {
        name
        for name, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.MillraceError)
    }
    assert documented == defined


def test_every_function_is_documented() -> None:
    text = (ROOT / "docs" / "aggregates.md").read_text()
    functions = [
        name
        for name in millrace.__all__
        if inspect.isfunction(function := getattr(millrace, name))
        and function.__module__ == "millrace.operators.aggregate.functions"
    ]
    assert len(functions) >= 9
    assert [name for name in functions if f"mr.{name}(" not in text] == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    for record in sorted(folder.glob("[0-9]*.md")):
        number, title = re.match(r"# (\d{4}): (.+)", record.read_text()).groups()  # type: ignore[union-attr]
        assert f"| [{number}]({record.name}) | {title} |" in index
