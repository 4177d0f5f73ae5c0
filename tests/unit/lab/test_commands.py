"""The lab's commands: found by the entry point its distribution declares, each with an example."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, EntryPoints

import click
import pytest
from click.testing import CliRunner
from tests.conftest import ROOT
from tests.unit.cli.test_command import commands

from millrace.cli.command import PLUGINS, main
from millrace_lab import __main__ as lab
from millrace_lab.bench.cli import bench
from millrace_lab.commands import COMMANDS

PROJECT = tomllib.loads((ROOT / "src" / "millrace_lab" / "pyproject.toml").read_text())["project"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the lab's distribution were installed, and no other."""
    declared = PROJECT["entry-points"][PLUGINS]
    points = EntryPoints(EntryPoint(n, value, PLUGINS) for n, value in declared.items())
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda *, group: points.select(group=group)
    )


@pytest.mark.usefixtures("installed")
def test_the_entry_point_adds_the_commands() -> None:
    helped = CliRunner().invoke(main, ["--help"])
    assert helped.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert f"  {name} " in helped.output
        assert line.split()[0] in helped.output
    with click.Context(main) as context:
        assert main.get_command(context, "bench") is bench
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2


@pytest.mark.parametrize("path", commands(lab.main), ids=" ".join)  # type: ignore[arg-type]
def test_help_has_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(lab.main, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"millrace {' '.join(path)}" in result.output


def test_the_table_imports_nothing_slow() -> None:
    code = "import millrace_lab.commands, sys; print({m.partition('.')[0] for m in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "'millrace_lab'" in loaded
    assert not {name for name in ("millrace", "pyspark", "numpy") if f"'{name}'" in loaded}
