"""`millrace bench`: options, exit codes, files. The benchmarks themselves run elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome
from tests.unit.lab.bench.results import python_result, state_types_result, written

from millrace_lab.bench import (
    BenchmarkError,
    Result,
    backends,
    end_to_end,
    endurance,
    fingerprints,
    graphs,
    growth,
    latency,
    limits,
    linear_road,
    nexmark,
    operators,
    patterns,
    peers,
    placement,
    python,
    query,
    realtime,
    recovery,
    rescale,
    serve,
    state_types,
    stores,
    throughput,
)
from millrace_lab.bench.cli import bench
from millrace_lab.bench.report import BEGIN, END

COMMANDS = {
    "throughput": throughput,
    "fingerprints": fingerprints,
    "growth": growth,
    "python": python,
    "state-types": state_types,
    "backends": backends,
    "rescale": rescale,
    "recovery": recovery,
    "stores": stores,
    "placement": placement,
    "query": query,
    "serve": serve,
    "limits": limits,
    "endurance": endurance,
    "latency": latency,
    "end-to-end": end_to_end,
    "realtime": realtime,
    "peers": peers,
    "operators": operators,
    "patterns": patterns,
    "graphs": graphs,
    "nexmark": nexmark,
    "linear-road": linear_road,
}


def run(*arguments: str) -> Outcome:
    return CliRunner().invoke(bench, arguments)


@pytest.fixture(params=COMMANDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def given(monkeypatch: pytest.MonkeyPatch, name: str, result: Any) -> list[Any]:
    """Have a benchmark end at once with a result, or an error; gives the options it got."""
    seen: list[Any] = []

    def end(options: Any, workdir: Path, steps: Any) -> Result:
        assert workdir.is_dir()
        steps.step("ending")
        seen.append(options)
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[no-any-return]

    monkeypatch.setattr(COMMANDS[name], "run", end)
    return seen


def test_every_benchmark_is_there_and_says_how_to_call_it(name: str) -> None:
    assert name in bench.commands
    helped = run(name, "--help")
    assert helped.exit_code == 0
    assert f"millrace bench {name} --quick" in helped.output
    assert "--json" in helped.output


def test_equal_outputs_end_with_0_and_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = Result(name)
    result.figure("x", 5)
    result.at_least("some.bar", 1, 2)
    given(monkeypatch, name, result)
    ended = run(name, "--json", str(tmp_path / "out.json"))
    assert ended.exit_code == 0, ended.output
    assert "missed" in ended.output
    assert json.loads((tmp_path / "out.json").read_text())["figures"] == {"x": 5}


def test_unequal_outputs_end_with_1_and_are_written(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = Result(name)
    result.compare("one side has lost a row", False)
    given(monkeypatch, name, result)
    ended = run(name, "--json", str(tmp_path / "out.json"))
    assert ended.exit_code == 1
    assert "one side has lost a row" in ended.output
    assert json.loads((tmp_path / "out.json").read_text())["equal"] is False


def test_a_failed_side_ends_with_1_and_writes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, name, BenchmarkError("a side failed"))
    ended = run(name, "--json", str(tmp_path / "out.json"))
    assert ended.exit_code == 1
    assert "a side failed" in ended.output
    assert not (tmp_path / "out.json").exists()


def test_ctrl_c_ends_with_130(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, name, KeyboardInterrupt())
    ended = run(name)
    assert ended.exit_code == 130
    assert "nothing is left running" in ended.output


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--keys", "many"), ("--epochs", "x")])
def test_wrong_options_end_with_2(
    name: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = given(monkeypatch, name, Result(name))
    ended = run(name, *arguments)
    assert ended.exit_code == 2
    assert not seen


def test_an_unknown_benchmark_ends_with_2() -> None:
    ended = run("speed")
    assert ended.exit_code == 2
    assert "No such command 'speed'" in ended.output


def test_quick_means_smaller(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = given(monkeypatch, name, Result(name))
    assert run(name).exit_code == run(name, "--quick").exit_code == 0
    usual, quick = seen
    assert quick != usual
    assert quick == usual.quick()
    assert quick == quick.quick()


def test_sizes_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    (options,) = _options(monkeypatch, "state-types", "--keys", "2k,3k", "--rows", "1k")
    assert (options.keys, options.changed) == ((2_000, 3_000), 1_000)
    (options,) = _options(monkeypatch, "python", "--keys", "2k", "--rows", "10k", "--epochs", "4")
    assert (options.keys, options.rows, options.epochs) == (2_000, 10_000, 4)


def _options(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> list[Any]:
    seen = given(monkeypatch, name, Result(name))
    ended = run(name, *arguments)
    assert ended.exit_code == 0, ended.output
    return seen


def test_rows_that_do_not_share_the_keys_evenly_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = given(monkeypatch, "python", Result("python"))
    ended = run("python", "--keys", "3k", "--rows", "10k")
    assert ended.exit_code == 2
    assert "must be a multiple" in ended.output
    assert not seen


def test_keep_needs_an_empty_directory(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given(monkeypatch, name, Result(name))
    kept = tmp_path / "kept"
    assert run(name, "--keep", str(kept)).exit_code == 0
    (kept / "file").touch()
    ended = run(name, "--keep", str(kept))
    assert ended.exit_code == 2
    assert "is not empty" in ended.output


def test_all_runs_all_and_ends_with_the_worst(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in COMMANDS:
        result = Result(name)
        result.compare("different", name != "growth")
        given(monkeypatch, name, result)
    for each in (peers, end_to_end, realtime):
        monkeypatch.setattr(each, "why_not", lambda options: None)
    ended = run("all", "--quick", "--out", str(tmp_path))
    assert ended.exit_code == 1
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == sorted(COMMANDS)


def test_all_makes_the_pages_with_pictures_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = {name: Result(name) for name in COMMANDS}
    results |= {"state-types": state_types_result(), "python": python_result()}
    seen = {name: given(monkeypatch, name, result) for name, result in results.items()}
    monkeypatch.chdir(tmp_path)
    docs = tmp_path / "docs"
    docs.mkdir()
    assert run("all", "--quick").exit_code == 0
    assert list(docs.iterdir()) == []
    ended = run("all")
    assert ended.exit_code == 0, ended.output
    assert "## rescale" in (docs / "benchmarks.md").read_text()
    quick, full = seen["rescale"]
    assert (quick.images, full.images) == (None, Path("docs/images"))


def test_all_leaves_out_what_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in COMMANDS:
        given(monkeypatch, name, Result(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("millrace_lab.servers.places.FOLDER", tmp_path / "none")
    ended = run("all", "--quick", "--out", str(tmp_path))
    assert ended.exit_code == 0, ended.output
    assert "peers: left out: there are no environments in .peers" in ended.output
    assert "end-to-end: left out: there is no Kafka" in ended.output
    assert "realtime: left out: there is no Kafka" in ended.output
    left = sorted({*COMMANDS} - {"peers", "end-to-end", "realtime"})
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == left


def test_peers_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (options,) = _options(monkeypatch, "peers", "--peers", "bytewax, flink-sql-heap")
    assert options.sides == ("bytewax", "flink-sql-heap")
    (options,) = _options(monkeypatch, "peers", "--environments", "elsewhere", "--windows", "7")
    assert options.environments == Path("elsewhere")
    assert options.windows == 7
    assert "pyspark-row" in options.sides


def test_report_makes_pages_and_the_table(tmp_path: Path) -> None:
    results, docs, readme = tmp_path / "results", tmp_path / "docs", tmp_path / "README.md"
    docs.mkdir()
    readme.write_text(f"{BEGIN}\n{END}\n")
    written(results, python_result(), state_types_result())
    ended = run(
        "report",
        "--no-plots",
        *("--results", str(results)),
        *("--docs", str(docs)),
        *("--readme", str(readme)),
    )
    assert ended.exit_code == 0, ended.output
    assert sorted(path.name for path in docs.iterdir()) == ["benchmarks.md", "state-types.md"]
    assert "| 40 |" in readme.read_text()


def test_report_says_what_is_missing(tmp_path: Path) -> None:
    ended = run("report", "--results", str(tmp_path), "--docs", str(tmp_path))
    assert ended.exit_code == 1
    assert "there are no results" in ended.output
    assert run("report", "--results", str(tmp_path / "none")).exit_code == 2
