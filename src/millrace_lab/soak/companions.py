"""The processes beside the query of a soak: a reader, `millrace serve`, and a client that asks it.

They run from the first epoch to the end, disturbed by the same store and the same clock as the
query. One that ends by itself is a problem, and is started again.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from millrace import clock
from millrace_lab import processes
from millrace_lab.soak.cluster import die_with_parent
from millrace_lab.soak.witness import Report

READING, CLIENT = "reading", "client"
LABELS = {READING: "reader", CLIENT: "client"}
"""What the figures call them."""
WITNESS_SECONDS = 900.0
"""By then a witness has seen the last epoch, however busy the machine is."""
END_SECONDS = 120.0
"""By then a process that was asked to end has ended."""
FRUITLESS_STARTS = 10
"""A server that ends this often before it listens is a problem."""
_PORTS = re.compile(r"127\.0\.0\.1:(\d+)")


class Companions:
    """The three processes."""

    def __init__(
        self,
        folder: Path,
        location: Path,
        environment: Mapping[str, str],
        chosen_keys: bool,
        say: Callable[[str], None],
        problem: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._location = location
        self._environment = dict(environment)
        self._chosen = "chosen" if chosen_keys else "plain"
        self._say = say
        self._problem = problem
        self._witnesses: dict[str, subprocess.Popen[bytes]] = {}
        self._serve: subprocess.Popen[bytes] | None = None
        self._is_listening = False
        self._fruitless = 0
        self._told = 0
        """Problems of witnesses that were told already."""
        self.starts: Counter[str] = Counter()
        """How often each was started."""
        (folder / "witnesses").mkdir(exist_ok=True)

    def tend(self, is_closed: bool) -> None:
        """Keep all of them running; `is_closed`: the store is out of reach or read-only."""
        for role in (READING, CLIENT):
            process = self._witnesses.get(role)
            if process is not None and process.poll() is not None:
                self._problem(f"{LABELS[role]} ended: {self._log_tail(self._name(role))}")
            if process is None or process.poll() is not None:
                self.starts[role] += 1
                module = f"millrace_lab.soak.{role}"
                arguments = [module, str(self._folder), self._name(role), self._chosen]
                self._witnesses[role] = self._start(self._name(role), *arguments)
        self._tend_serve(is_closed)
        problems = self.problems()
        for text in problems[self._told :]:
            self._say(f"PROBLEM {text}")
        self._told = len(problems)

    def _tend_serve(self, is_closed: bool) -> None:
        if self._serve is not None and self._serve.poll() is not None:
            tail = self._log_tail(self._name("serve"))
            self._fruitless += not self._is_listening
            if self._is_listening or self._fruitless == FRUITLESS_STARTS:
                self._problem(f"serve ended with {self._serve.returncode}: {tail}")
            self._forget_serve()
        if self._serve is None and not is_closed:
            self.starts["serve"] += 1
            arguments = ["serve", str(self._location), "--port", "0", "--flight-port", "0"]
            self._serve = self._start(self._name("serve"), "millrace.cli", *arguments)
        if self._serve is not None and not self._is_listening:
            ports = _PORTS.findall(self._log_tail(self._name("serve")))
            if len(ports) == 2:
                self._is_listening, self._fruitless = True, 0
                self._say(f"serve listens at {' and '.join(ports)}")
                address = {"http": int(ports[0]), "flight": int(ports[1])}
                temporary = self._folder / ".serve.json"
                temporary.write_text(json.dumps(address))
                temporary.replace(self._folder / "serve.json")

    def kill_serve(self) -> bool:
        """SIGKILL; whether there was a server that listened."""
        if self._serve is None or not self._is_listening:
            return False
        self._serve.kill()
        self._serve.wait()
        self._forget_serve()
        return True

    def _forget_serve(self) -> None:
        self._serve, self._is_listening = None, False
        (self._folder / "serve.json").unlink(missing_ok=True)

    def finish(self, epoch: int, wait: Callable[[], None]) -> None:
        """Let both witnesses see the last epoch, then end everything."""
        until = clock.stopwatch() + WITNESS_SECONDS
        late = [READING, CLIENT]
        while late and clock.stopwatch() < until:
            wait()
            late = [role for role in late if self._report(role).epoch < epoch]
        for role in late:
            seen = self._report(role).epoch
            tail = self._log_tail(self._name(role))
            self._problem(f"{LABELS[role]} is at epoch {seen}, not {epoch}: {tail}")
        self._end(late)

    def _end(self, late: list[str]) -> None:
        for role, process in self._witnesses.items():
            (self._folder / "witnesses" / f"{self._name(role)}.stop").touch()
            if role not in late:
                self._await(role, process)
        if self._serve is not None:
            self._serve.send_signal(signal.SIGTERM)
            self._await("serve", self._serve)
        self.close()

    def _await(self, name: str, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._problem(f"{name} does not end: {self._log_tail(self._name(name))}")

    def close(self) -> None:
        """Kill what is left."""
        for process in [*self._witnesses.values(), *filter(None, [self._serve])]:
            processes.end_session(process.pid)
            process.wait()
        self._witnesses.clear()
        self._forget_serve()

    def problems(self) -> list[str]:
        """What witnesses met that must not happen."""
        reports = self._reports()
        return [f"{who}: {text}" for who, found in reports for text in found.problems]

    def mismatches(self) -> list[str]:
        reports = self._reports()
        return [f"{who}: {text}" for who, found in reports for text in found.mismatches]

    def counts(self) -> dict[str, int]:
        """What was done beside the query, by whom and what."""
        found: Counter[str] = Counter()
        for who, report in self._reports():
            found += Counter({f"{who}: {what}": n for what, n in report.counts.items()})
        for role, number in self.starts.items():
            found[f"{LABELS.get(role, role)}: started"] = number
        return dict(sorted(found.items()))

    def _reports(self) -> list[tuple[str, Report]]:
        """Of every witness that there was, with what it is called."""
        paths = sorted((self._folder / "witnesses").glob("[!.]*-*.json"))
        return [(LABELS[path.stem.partition("-")[0]], Report.read(path)) for path in paths]

    def _report(self, role: str) -> Report:
        return Report.read(self._folder / "witnesses" / f"{self._name(role)}.json")

    def _name(self, role: str) -> str:
        return f"{role}-{self.starts[role]}"

    def _log_tail(self, name: str) -> str:
        path = self._folder / "logs" / f"{name}.log"
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "logs" / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
