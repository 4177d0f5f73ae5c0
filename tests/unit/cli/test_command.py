"""The command itself: help with examples, exit codes, Ctrl-C."""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from tests.conftest import ROOT
from tests.unit.ui.histories import eventful
from tests.waiting import DEADLINE

from millrace._version import __version__
from millrace.cli.command import COMMANDS, PLUGINS, main
from millrace.reconfigure.requests import Requests


def commands(group: click.Group, *names: str) -> list[tuple[str, ...]]:
    """Every command that does something."""
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            found += commands(command, *names, name)
        else:
            found.append((*names, name))
    return found


@pytest.mark.parametrize("path", commands(main), ids=" ".join)  # type: ignore[arg-type]
def test_help_has_an_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"millrace {' '.join(path)}" in result.output


def test_the_list_says_what_each_does() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for name, (_, line) in COMMANDS.items():
        assert name in output
        assert line.split(".")[0].split()[0] in output


def test_wrong_options_are_2() -> None:
    assert CliRunner().invoke(main, ["ui"]).exit_code == 2
    assert CliRunner().invoke(main, ["no-such-command"]).exit_code == 2


def test_the_page_of_what_is_not_a_location(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ui", str(tmp_path), "--port", "0"])
    assert result.exit_code == 1
    assert "is not a Millrace location" in result.output
    assert "Traceback" not in result.output


def start(*arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "millrace.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_ends_at_once(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    process = start("ui", past.url, "--port", "0")
    assert process.stdout is not None
    assert "is at http://127.0.0.1:" in process.stdout.readline()
    assert process.stdout.readline() == "Ctrl-C ends it\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=DEADLINE)
    assert (process.returncode, output, errors) == (0, "ended\n", "")


def test_ctrl_c_withdraws_a_request_that_nobody_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = eventful(tmp_path / "location", monkeypatch)
    requests = Requests(past.location.store)
    known = set(requests.ids())
    process = start("rescale", past.url, "--parallelism", "2", "--timeout", str(DEADLINE))
    while not requests.open():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert errors.endswith("interrupted\n")
    (asked,) = set(requests.ids()) - known
    answer = requests.answered(asked)
    assert answer is not None
    assert answer.state == "cancelled"


def test_without_other_distributions_help_and_examples_are_the_products_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: EntryPoints())
    output = CliRunner().invoke(main, ["--help"]).output
    listed = re.findall(r"^  ([a-z]+)  ", output.partition("Commands:")[2], re.MULTILINE)
    assert listed == sorted(COMMANDS)
    examples = re.findall(r"^ +millrace ([a-z]+) ", output, re.MULTILINE)
    assert examples
    assert set(examples) <= set(COMMANDS)
    assert CliRunner().invoke(main, ["bench"]).exit_code == 2


def test_an_added_command_does_not_replace_one_of_the_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"ls": ("builtins:print", "Not this one."), "more": ("builtins:print", "One more.")}
    monkeypatch.setitem(sys.modules, "added", SimpleNamespace(TABLE=table))
    points = EntryPoints([EntryPoint("added", "added:TABLE", PLUGINS)])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points)
    output = CliRunner().invoke(main, ["--help"]).output
    assert "One more." in output
    assert "Not this one." not in output


def test_the_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"millrace, version {__version__}\n"
