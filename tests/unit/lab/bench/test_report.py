"""Pages are a function of the results, and the pages in the tree are those of the results in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import ROOT
from tests.unit.lab.bench.results import peers_result, python_result, state_types_result, written

from millrace_lab.bench import BenchmarkError, Result, _result_plots, report
from millrace_lab.bench._peer_sides import LEFT_OUT
from millrace_lab.bench._state_kinds import KINDS
from millrace_lab.bench._summary import summary


def test_results_come_in_the_order_of_the_pages(tmp_path: Path) -> None:
    written(tmp_path, Result("zebra"), state_types_result(), python_result())
    (tmp_path / "mutation.json").write_text('{"samples": []}')
    assert list(report.load(tmp_path)) == ["python", "state-types", "zebra"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a benchmark's result"),
        ("3", "is not a benchmark's result"),
        ("{}", "it has no 'name'"),
        ('{"name": "x", "equal": true}', "it has no 'figures'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        report.load(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="Run `millrace bench all` first"):
        report.load(tmp_path)


def test_the_page_has_a_summary_and_every_benchmark(tmp_path: Path) -> None:
    other = Result("other")
    other.figure("seconds.x", 0.25)
    other.compare("they differ", False)
    results = written(tmp_path, python_result(), other)
    page = report.pages(results)["benchmarks.md"]
    assert f"## Summary\n\n{summary(results)}\n\n## python" in page
    assert "| `python.count.pyspark_row` | 40 | 30 | yes |" in page
    assert "| rows/s, by program and keys | count.100k | sessions.100k |" in page
    assert "| `millrace` | 200,000 | 200,000 |" in page
    assert "`rows_per_s." not in page
    assert "## other" in page
    assert "| `seconds.x` | 0.25 |" in page
    assert "**outputs differ: the times mean nothing**" in page
    assert "images/" not in page


def test_a_bar_that_is_a_ratio_is_shown_once(tmp_path: Path) -> None:
    result = Result("other")
    result.at_least("speed.spark", result.ratio("speed.spark", 3), 2)
    result.ratio("speed.flink", 4)
    page = report.pages(written(tmp_path, result))["benchmarks.md"]
    assert "| `speed.spark` | 3 | 2 | yes |\n| `speed.flink` | 4 |  |  |" in page
    assert page.count("speed.spark") == 1


def test_ratios_of_a_grid_are_shown_by_their_figures(tmp_path: Path) -> None:
    result = python_result()
    result.ratio("python.count.compat_over_pyspark_row", 26)
    page = report.pages(written(tmp_path, result))["benchmarks.md"]
    assert "| `python.count.pyspark_row` | 40 | 30 | yes |" in page
    assert "compat_over_pyspark_row" not in page


def test_the_page_of_state_types_has_all_kinds_sizes_and_measures(tmp_path: Path) -> None:
    results = written(tmp_path, state_types_result())
    made = report.pages(results, ["state-types.png"])
    page = made["state-types.md"]
    assert "![What each kind of state costs](images/state-types.png)" in page
    for heading, _ in report.MEASURES.values():
        assert f"## {heading}" in page
    assert page.count("| state | 1k | 100k |") == len(report.MEASURES)
    for n, kind in enumerate(KINDS):
        assert f"| {kind.name} | {10 * n + 1} | {10 * n + 1} |" in page
    assert "| list: append | 1m over 100 | 1.5 | 2,048 |" in page
    assert "| `big.bytes.list_append.1m_over_100` | 2.5 | 2 | **no** |" in page
    assert "(state-types.md)" in made["benchmarks.md"]


def test_latency_has_a_table_of_the_parts_of_a_batch(tmp_path: Path) -> None:
    latency = Result("latency")
    latency.figure("latency.millrace.50.shown_p50_ms", 300)
    latency.figure("latency.spark.50.shown_p50_ms", 700)
    latency.figure("epoch_ms.millrace.50.addBatch", 80)
    latency.figure("epoch_ms.millrace.50.shard.apply", 3.5)
    latency.figure("epoch_ms.spark.50.addBatch", 120)
    page = report.pages(written(tmp_path, latency))["benchmarks.md"]
    assert "| ms, by load in % | shown_p50_ms |\n| --- | --- |\n| `millrace.50` | 300 |" in page
    assert "| part of a batch, ms | millrace.50 | spark.50 |" in page
    assert "| `addBatch` | 80 | 120 |" in page
    assert "| `shard.apply` | 3.5 |  |" in page


def test_peers_have_a_table_with_ranges_and_costs(tmp_path: Path) -> None:
    page = report.pages(written(tmp_path, peers_result()))["benchmarks.md"]
    _, section = page.split("## peers")
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert rows[:6] == [
        "| 100k keys | rows/s | range | Millrace over it | range | CPU s per million rows "
        "| peak memory, MB | GB s per million rows |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| Millrace, aggregates | 2,000,000 | 1,000,000 to 4,000,000 |  |  | 1.5 | 1,234 | 0.25 |",
        "| Millrace, `mr.Processor` | 100,000 | 50,000 to 200,000 |  |  | 1.5 | 1,234 | 0.25 |",
        "| Flink SQL, heap | 4,000,000 | 2,000,000 to 8,000,000 | 0.5 | 0.125 to 2 | 1.5 | 1,234 "
        "| 0.25 |",
        "| PyFlink keyed state, heap | 500 | 250 to 1,000 | 200 (processor) | 50 to 800 | 1.5 "
        "| 1,234 | 0.25 |",
    ]
    assert "flink 9.9" in page
    for name in LEFT_OUT:
        assert f"- {name}: " in page


def test_the_table_of_the_readme_has_what_there_is(tmp_path: Path) -> None:
    results = written(tmp_path, python_result())
    made = summary(results)
    assert made.splitlines()[2:] == [
        "| per-key Python, a count, rows/s | 100,000 | 200,000 "
        "| PySpark `transformWithState`: 5,000 | 40 |",
        "| per-key Python, sessions, rows/s | 100,000 | 200,000 "
        "| PySpark `transformWithState`: 5,000 | 40 |",
    ]
    results["python"]["equal"] = False
    assert len(summary(results).splitlines()) == 2


def test_the_summary_replaces_what_is_between_the_marks(tmp_path: Path) -> None:
    results = written(tmp_path, python_result())
    readme = f"# A\n\n{report.BEGIN}\nold\n{report.END}\n\n## B\n"
    once = report.with_summary(readme, results)
    assert "old" not in once
    assert once.startswith(f"# A\n\n{report.BEGIN}\n\n{summary(results)}\n\n")
    assert once.endswith(f"\n\n{report.END}\n\n## B\n")
    assert report.with_summary(once, results) == once
    with pytest.raises(BenchmarkError, match="no place for the results"):
        report.with_summary("# A\n", results)


def test_the_last_soak_is_on_the_page_about_reliability() -> None:
    result = {
        **Result("soak").to_json(),
        "figures": {"seconds": 1830.0},
        "command": "millrace soak --minutes 30 --seed 1",
        "epochs": 1234,
        "rows": 56789,
        "restarts": 7,
        "disturbances": {"driver killed": 3, "disk full": 2},
        "ends": {"killed": 3},
        "spark": {"tasks": 4000},
        "compared": {"state of visits": 900},
        "problems": [],
        "mismatches": ["one"],
    }
    page = f"# A\n\n{report.SOAK_BEGIN}\nold\n{report.SOAK_END}\n\n## B\n"
    made = report.with_soak(page, result)
    assert "The latest run, 30 minutes: `millrace soak --minutes 30 --seed 1`" in made
    assert "| epochs | 1,234 |" in made
    assert "| **disturbances** | 5 |\n| driver killed | 3 |\n| disk full | 2 |" in made
    assert "| **problems** | 0 |\n| **mismatches** | 1 |" in made
    assert "old" not in made
    assert report.with_soak(made, result) == made


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1.4, "1.4"),
        (0.01234, "0.0123"),
        (41.66, "41.7"),
        (123.4, "123"),
        (1e6, "1,000,000"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert report.number(value) == shown


def test_pictures_are_drawn(tmp_path: Path) -> None:
    results = written(tmp_path, state_types_result(), python_result())
    names = _result_plots.draw(results, tmp_path / "images")
    assert sorted(names) == ["python.png", "state-types.png"]
    for name in names:
        assert (tmp_path / "images" / name).read_bytes().startswith(b"\x89PNG")
    assert _result_plots.draw({"growth": results["python"]}, tmp_path / "none") == []


def test_the_pages_in_the_tree_are_those_of_the_results_in_it() -> None:
    results = report.load(ROOT / "src" / "millrace_lab" / "results")
    images = [path.name for path in (ROOT / "docs" / "images").glob("*.png")]
    for name, text in report.pages(results, images).items():
        assert (ROOT / "docs" / name).read_text() == text, f"run `millrace bench report`: {name}"
    if "soak" in results:
        page = (ROOT / "docs" / "reliability.md").read_text()
        assert report.with_soak(page, results["soak"]) == page, "run `millrace bench report`"
    readme = (ROOT / "README.md").read_text()
    assert report.with_summary(readme, results) == readme, "run `make report`"
    assert all(result["equal"] for result in results.values())
