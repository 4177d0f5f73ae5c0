"""`millrace serve`: what it refuses, and that it serves until it is told to stop."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.unit.serve.counting import Counting
from tests.waiting import DEADLINE

from millrace.cli import main
from millrace.errors import TokenRequiredError
from millrace.serve.command import Endpoint, read_token, server
from millrace.serve.lookups import Lookups


def test_where_the_token_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN", "from-environment")
    assert read_token(None) == "from-environment"
    file = tmp_path / "token"
    file.write_text("from-file\n")
    assert read_token(file) == "from-file"
    file.write_text("\n")
    with pytest.raises(TokenRequiredError, match="is empty"):
        read_token(file)
    monkeypatch.setenv("MILLRACE_TOKEN", "")
    assert read_token(None) is None


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_TOKEN", raising=False)
    nowhere = CliRunner().invoke(main, ["serve", str(tmp_path)])
    assert (nowhere.exit_code, "is not a Millrace location" in nowhere.output) == (1, True)
    Counting(str(tmp_path / "location"))
    open_host = ["serve", str(tmp_path / "location"), "--host", "0.0.0.0"]
    exposed = CliRunner().invoke(main, open_host)
    assert (exposed.exit_code, "a token is needed" in exposed.output) == (1, True)
    nowhere = CliRunner().invoke(main, [*open_host[:2], "--host", "no-such-host.invalid"])
    assert (nowhere.exit_code, "a token is needed" in nowhere.output) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = CliRunner().invoke(main, [*open_host[:2], "--port", port])
    assert (busy.exit_code, "Choose another --host or --port" in busy.output) == (1, True)
    half = CliRunner().invoke(main, ["serve", str(tmp_path), "--tls-cert", __file__])
    assert half.exit_code == 2


def test_it_serves_and_stops(tmp_path: Path) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 5)})
    command = [sys.executable, "-m", "millrace.cli", "serve", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--flight-port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        told = [process.stderr.readline() for _ in range(3)]
        port = re.search(r"http://127\.0\.0\.1:(\d+)/docs", told[1])
        assert port, told
        assert "grpc://127.0.0.1:" in told[2]
        base = f"http://127.0.0.1:{port[1]}"
        assert httpx.get(f"{base}/v1/totals?k=a", timeout=DEADLINE).json()["row"]["total"] == 5
        counting.epoch({"a": (1, 5)})
        while httpx.get(f"{base}/v1/totals?k=a", timeout=DEADLINE).json()["epoch"] < 2:
            assert process.poll() is None
        assert httpx.get(f"{base}/v1/totals?k=a", timeout=DEADLINE).json()["row"]["total"] == 10
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.stderr.close()


def test_a_server_outlives_what_one_request_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(str(tmp_path))
    counting.epoch({"a": (1, 5)})
    lookups = Lookups(str(tmp_path))
    served = server(lookups, Endpoint("127.0.0.1", 0, None, None))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=served.run, kwargs={"sockets": [bound]})
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1/totals?k=a"

        def failing(*_: object) -> None:
            raise RuntimeError("out of luck")

        with monkeypatch.context() as patched:
            patched.setattr(lookups, "look_up", failing)
            assert httpx.get(url, trust_env=False, timeout=DEADLINE).status_code == 500
        assert httpx.get(url, trust_env=False, timeout=DEADLINE).json()["row"]["total"] == 5
        served.should_exit = True
        thread.join(DEADLINE)
    assert not thread.is_alive()
