"""The supervisor: starts drivers, disturbs them, starts them again, and counts.

A driver that ends, however it ends, is replaced at once. One that was stopped (SIGSTOP) is a
zombie: its replacement runs, commits, and only then is the zombie woken up; it must find out that
it has lost, and say to whom.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from millrace import clock
from millrace.errors import MillraceError, MissingFileError
from millrace.ids import Epoch
from millrace.log import Journal, open_store
from millrace.reconfigure.requests import Requests
from millrace_lab import processes
from millrace_lab.faults import crashes, faulty, outage
from millrace_lab.soak import events
from millrace_lab.soak import schedule as s
from millrace_lab.soak.clocks import JumpingClock
from millrace_lab.soak.cluster import die_with_parent
from millrace_lab.soak.companions import Companions
from millrace_lab.soak.disk import Disk
from millrace_lab.soak.driver import Orders
from millrace_lab.soak.drivers import Driver, Tally, Zombie
from millrace_lab.soak.witness import OUTAGE

POLL_SECONDS = 0.2
FRUITLESS_LIVES = 10
"""The soak gives up after this many drivers in a row that end without an epoch."""
STALL_SECONDS = 900.0
"""Without an epoch for this long since a driver was started, something hangs."""
ZOMBIE_EPOCHS = 2
"""A stopped driver is woken up after this many epochs of its replacement."""
ZOMBIE_SECONDS = 600.0
"""By then a zombie must have noticed, however busy the machine is."""
COLLECT_SECONDS = 600.0
"""By then a collection by hand has ended."""
LONG_OUTAGE = 7.5
"""How much longer than other acts the longer outages of the store last: up to a minute."""
_WINNER = re.compile(r"was committed by run (\w+)|run (\w+) has committed")


class SoakFailedError(MillraceError):
    """The soak itself could not continue."""


class Interrupted(Exception):
    """Somebody pressed Ctrl-C."""


Say = Callable[[str], None]


class Supervisor:
    """One soak."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        plan: s.Schedule,
        executors: int,
        clocks: JumpingClock | None,
        chosen_keys: bool,
        say: Say,
        is_interrupted: Callable[[], bool],
    ) -> None:
        self.tally = Tally()
        self.location = disk.path / "location"
        self.sinks = disk.path / "sinks"
        self._folder = folder
        self._disk = disk
        self._plan = plan
        self._executors = executors
        self._clocks = clocks
        self._chosen_keys = chosen_keys
        self._outage = folder / OUTAGE
        self._say = say
        self._is_interrupted = is_interrupted
        self._driver: Driver | None = None
        self._zombies: list[Zombie] = []
        self._stopped: list[tuple[float, list[int]]] = []
        """Processes to wake up, and when."""
        self._runs: set[str] = set()
        self._fruitless = 0
        """Drivers in a row that ended without an epoch."""
        self._is_ending = False
        """From here on drivers live without faults."""
        self._advanced = clock.stopwatch()
        self._is_closed = False
        """The disk is full or read-only, or the store out of reach: a driver could not start."""
        for name in ("lives", "logs", "marks", "events", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        self.companions = Companions(
            folder, self.location, self._environment(), chosen_keys, say, self._problem
        )

    def run(
        self, seconds: float, disturbances: int | None, progress: Callable[[Tally], None]
    ) -> None:
        """Disturb the query for some seconds, or some times, then let it end undisturbed."""
        try:
            end = clock.stopwatch() + seconds if disturbances is None else float("inf")
            done = 0
            for act in self._plan.acts():
                if done == disturbances:
                    break
                self._watch(act.pause, progress, least_epochs=1, until=end)
                if clock.stopwatch() >= end:
                    break
                done += self._do(act, progress)
            self._finish(progress)
        finally:
            self.close()

    def close(self) -> None:
        """End every process that was started."""
        for zombie in self._zombies:
            zombie.driver.kill()
        self._zombies.clear()
        if self._driver is not None:
            self._driver.kill()
            self._driver = None
        self.companions.close()
        outage.end(self._outage)
        self._disk.restore()

    def _watch(
        self,
        seconds: float,
        progress: Callable[[Tally], None],
        *,
        least_epochs: int = 0,
        until: float = float("inf"),
    ) -> None:
        """Wait for a time and for some epochs; keep a driver alive meanwhile."""
        began, epoch = clock.stopwatch(), self.tally.epoch
        while True:
            if self._is_interrupted():
                raise Interrupted
            self._tend()
            progress(self.tally)
            now = clock.stopwatch()
            if now >= until:
                return
            if now - began >= seconds and self.tally.epoch >= epoch + least_epochs:
                return
            clock.sleep(POLL_SECONDS)

    def _tend(self) -> None:
        """Look at everything once."""
        self._look_at_the_head()
        now = clock.stopwatch()
        for due, pids in [entry for entry in self._stopped if entry[0] <= now]:
            processes.send(pids, signal.SIGCONT)
            self._stopped.remove((due, pids))
        for zombie in list(self._zombies):
            self._tend_zombie(zombie)
        if self._driver is not None and self._driver.process.poll() is not None:
            self._record_end(self._driver)
            self._driver = None
        if self._driver is None and not self._is_closed:
            self._start()
        if self.tally.epoch:
            self.companions.tend(self._is_closed)
        if now - self._advanced > STALL_SECONDS:
            self._advanced = now
            if self._driver is not None:
                self._driver.dump_threads()
            tail = self._log_tail(self._driver) if self._driver else ""
            self._problem(f"no epoch for {STALL_SECONDS:.0f} s after {self.tally.epoch}: {tail}")
            if self._driver is not None:
                self._driver.kill()

    def _look_at_the_head(self) -> None:
        if not (self.location / "millrace.json").exists():
            return
        journal = Journal.open(open_store(str(self.location)))
        head = journal.head()
        for epoch in range(self.tally.epoch + 1, head + 1):
            self.tally.epoch = epoch
            self._fruitless = 0
            self._advanced = clock.stopwatch()
            # A collection by hand may have been faster than this look.
            with contextlib.suppress(MissingFileError):
                self._runs.add(journal.read(Epoch(epoch))[0].run)

    def _start(self) -> None:
        life = self._plan.life()
        name = f"{self.tally.lives:04d}"
        self.tally.lives += 1
        first = self.tally.lives == 1
        orders = Orders(
            executors=self._executors,
            parallelism=self._executors if first else None,
            speculation=life.speculation,
            standby=life.standby,
            chosen_keys=self._chosen_keys,
        )
        orders.write(self._folder / "lives" / f"{name}.json")
        environment = self._environment()
        crash = ""
        if not self._is_ending:
            if life.faults:
                environment |= faulty.environment(life.faults)
            if life.crash:
                crash = life.crash.format(epoch=self.tally.epoch + life.crash_after)
                environment |= crashes.environment(crash, self._folder / "marks")
        with (self._folder / "logs" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "millrace_lab.soak.driver", str(self._folder), name],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._advanced = clock.stopwatch()
        self._driver = Driver(name, process, crash, bool(crash) or faulty.VARIABLE in environment)
        details = [f"faults {life.faults}" if environment.get(faulty.VARIABLE) else "", crash]
        self._say(f"driver {name} starts {' '.join(filter(None, details))}".rstrip())

    def _environment(self) -> dict[str, str]:
        """Of every process that has to do with the location."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in (crashes.VARIABLE, faulty.VARIABLE)
        }
        # Executors would take whatever Python is on the path.
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        # A killed process leaves its temporary files behind.
        environment["TMPDIR"] = str(self._folder / "tmp")
        environment |= outage.environment(self._outage)
        if self._clocks is not None:
            environment |= self._clocks.environment()
        return environment

    def _record_end(self, driver: Driver) -> None:
        """Count how a driver ended; errors that nothing explains are problems."""
        code = driver.process.returncode
        end = self._end_of(driver)
        if end is not None and end["error"]:
            how = end["error"]
        elif code == -signal.SIGKILL:
            point = driver.crash.partition("@")[0]
            named = driver.crash.endswith(":driver") and not driver.was_killed
            how = "killed at a named point" if named else "killed"
            if named:
                self.tally.acts[f"driver killed at {point}"] += 1
        else:
            how = "stopped" if code == 0 else f"exit code {code}"
        self.tally.ends[how] += 1
        self._say(f"driver {driver.life} ended: {how} {(end or {}).get('text', '')[:300]}".rstrip())
        driver.kill()
        self._count_events(driver)
        self._fruitless += 1
        if self._fruitless >= FRUITLESS_LIVES:
            raise SoakFailedError(
                f"{FRUITLESS_LIVES} drivers in a row ended before an epoch. The last: "
                f"{(end or {}).get('text', '') or self._log_tail(driver)}"
            )

    def _end_of(self, driver: Driver) -> dict[str, str] | None:
        path = self._folder / "lives" / f"{driver.life}.end.json"
        if not path.exists():
            return None
        found: dict[str, str] = json.loads(path.read_text())
        return found

    def _count_events(self, driver: Driver) -> None:
        folder = self._folder / "events" / driver.life
        self.tally.spark += events.tally(folder)
        shutil.rmtree(folder, ignore_errors=True)
        for mark in (self._folder / "marks").iterdir():
            point, _, epoch = mark.name.partition("@")
            victim = driver.crash.rpartition(":")[2]
            if driver.crash.startswith(f"{point}@{epoch}:"):
                self.tally.acts[f"{victim} killed at {point}"] += 1
                mark.unlink()

    def _log_tail(self, driver: Driver) -> str:
        return (self._folder / "logs" / f"{driver.life}.log").read_text(errors="replace")[-1500:]

    def _problem(self, text: str) -> None:
        self.tally.problems.append(text)
        self._say(f"PROBLEM {text}")

    def _do(self, act: s.Act, progress: Callable[[Tally], None]) -> bool:
        """Whether it could be done: there may be no victim."""
        driver = self._driver
        if driver is None or driver.process.poll() is not None:
            return False
        done = self._ACTS[act.kind](self, act, driver, progress)
        if done:
            self.tally.acts[act.kind] += 1
            self._say(f"{act.kind} {done}")
        return bool(done)

    def _victim(self, act: s.Act, driver: Driver) -> tuple[str, int] | None:
        found = sorted(processes.executor_processes(driver.process.pid).items())
        return found[int(act.share * len(found))] if found else None

    def _kill_executor(self, act: s.Act, driver: Driver, _: object) -> str:
        victim = self._victim(act, driver)
        if victim is None or not processes.send([victim[1]], signal.SIGKILL):
            return ""
        return f"(executor {victim[0]})"

    def _workers(self, act: s.Act, driver: Driver) -> list[int]:
        victim = self._victim(act, driver)
        return processes.python_workers(victim[1]) if victim is not None else []

    def _kill_worker(self, act: s.Act, driver: Driver, _: object) -> str:
        workers = self._workers(act, driver)
        return f"({workers[0]})" if workers and processes.send(workers, signal.SIGKILL) else ""

    def _kill_driver(self, act: s.Act, driver: Driver, _: object) -> str:
        driver.was_killed = True
        driver.process.kill()
        driver.process.wait()
        return f"({driver.life})"

    def _kill_all(self, act: s.Act, driver: Driver, _: object) -> str:
        driver.kill()
        return f"({driver.life})"

    def _stop_executor(self, act: s.Act, driver: Driver, _: object) -> str:
        """The JVM and its workers: nothing of it runs until it is woken up."""
        victim = self._victim(act, driver)
        if victim is None:
            return ""
        # Now and then for longer than Spark waits for a heartbeat.
        seconds = act.seconds * (4 if act.share < 0.3 else 1)
        return self._stop([victim[1], *processes.descendants(victim[1])], seconds)

    def _stop_worker(self, act: s.Act, driver: Driver, _: object) -> str:
        return self._stop(self._workers(act, driver), act.seconds)

    def _stop(self, pids: list[int], seconds: float) -> str:
        if not pids or not processes.send(pids, signal.SIGSTOP):
            return ""
        self._stopped.append((clock.stopwatch() + seconds, pids))
        return f"for {seconds:.0f} s"

    def _stop_driver(self, act: s.Act, driver: Driver, _: object) -> str:
        driver.send(signal.SIGSTOP)
        self._zombies.append(Zombie(driver, self.tally.epoch + ZOMBIE_EPOCHS))
        self._driver = None
        return f"({driver.life})"

    def _tend_zombie(self, zombie: Zombie) -> None:
        driver = zombie.driver
        if zombie.woken is None:
            if self.tally.epoch >= zombie.wake_at:
                zombie.woken = clock.stopwatch()
                driver.send(signal.SIGCONT)
                self._say(f"driver {driver.life} wakes up at epoch {self.tally.epoch}")
            return
        if driver.process.poll() is None:
            if clock.stopwatch() - zombie.woken < ZOMBIE_SECONDS:
                return
            driver.dump_threads()
            self._problem(f"zombie {driver.life} has not noticed: {self._log_tail(driver)}")
        seconds = clock.stopwatch() - zombie.woken
        self.tally.slowest_zombie = max(self.tally.slowest_zombie, seconds)
        self._zombies.remove(zombie)
        end = self._end_of(driver) or {"error": "", "text": ""}
        named = _WINNER.search(end["text"])
        if named and (named.group(1) or named.group(2)) not in self._runs:
            self._problem(f"zombie {driver.life} names a run that never committed: {end['text']}")
        how = end["error"] + (" that names the winner" if named else "")
        self.tally.ends[f"zombie: {how or 'killed'}"] += 1
        self._say(f"zombie {driver.life} ended after {seconds:.0f} s: {how} {end['text'][:300]}")
        driver.kill()
        self._count_events(driver)

    def _fill_disk(self, act: s.Act, _: object, progress: Callable[[Tally], None]) -> str:
        self._disk.fill()
        return self._closed(act, progress)

    def _protect_disk(self, act: s.Act, _: object, progress: Callable[[Tally], None]) -> str:
        return self._closed(act, progress) if self._disk.protect() else ""

    def _closed(self, act: s.Act, progress: Callable[[Tally], None]) -> str:
        self._is_closed = True
        try:
            self._watch(act.seconds, progress)
        finally:
            self._disk.restore()
            self._is_closed = False
        return f"for {act.seconds:.0f} s"

    def _cut_off(self, act: s.Act, _: object, progress: Callable[[Tally], None]) -> str:
        """Every operation of the store raises, in the driver, its workers, readers and serve."""
        kind = list(outage.KINDS)[int(act.share * 100) % len(outage.KINDS)]
        seconds = act.seconds * (LONG_OUTAGE if act.share < 0.3 else 1)
        self._is_closed = True
        outage.begin(self._outage, kind)
        try:
            self._watch(seconds, progress)
        finally:
            outage.end(self._outage)
            self._is_closed = False
        return f"for {seconds:.0f} s ({outage.KINDS[kind].__name__})"

    def _collect(self, act: s.Act, _: object, progress: Callable[[Tally], None]) -> str:
        """The command, as an administrator would give it."""
        retain = 3 + int(act.share * 20)
        command = [sys.executable, "-m", "millrace.cli", "gc", str(self.location)]
        log = self._folder / "logs" / "gc.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--retain", str(retain)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        until = clock.stopwatch() + COLLECT_SECONDS
        while process.poll() is None and clock.stopwatch() < until:
            self._watch(POLL_SECONDS, progress)
        if process.poll() is None:
            process.kill()
            process.wait()
        said = log.read_text(errors="replace").strip()
        if process.returncode:
            self._problem(f"millrace gc ended with {process.returncode}: {said[-1500:]}")
        return f"--retain {retain}: {said[-200:]}"

    def _kill_serve(self, _: s.Act, __: object, ___: object) -> str:
        return "and started again" if self.companions.kill_serve() else ""

    def _jump(self, act: s.Act, _: object, __: object) -> str:
        assert self._clocks is not None
        self._clocks.jump_to(act.jump)
        return f"to {act.jump:+d} s"

    def _rescale(self, act: s.Act, _: object, __: object) -> str:
        requests = Requests(open_store(str(self.location)))
        requests.submit("rescale", parallelism=act.parallelism, strategy=act.strategy)
        return f"to {act.parallelism} ({act.strategy})"

    _ACTS: ClassVar[dict[str, Callable[..., str]]] = {
        s.EXECUTOR_KILLED: _kill_executor,
        s.WORKER_KILLED: _kill_worker,
        s.DRIVER_KILLED: _kill_driver,
        s.MACHINE_KILLED: _kill_all,
        s.EXECUTOR_STOPPED: _stop_executor,
        s.WORKER_STOPPED: _stop_worker,
        s.DRIVER_STOPPED: _stop_driver,
        s.DISK_FULL: _fill_disk,
        s.READ_ONLY: _protect_disk,
        s.CLOCK_JUMP: _jump,
        s.RESCALE: _rescale,
        s.OUTAGE: _cut_off,
        s.COLLECTION: _collect,
        s.SERVE_KILLED: _kill_serve,
    }

    def _finish(self, progress: Callable[[Tally], None]) -> None:
        """Stopped processes wake up and are fenced; the last life is one without faults."""
        self._say("no more faults")
        self._is_ending = True
        while self._zombies or self._stopped:
            self._watch(POLL_SECONDS, progress)
        if self._driver is not None and self._driver.is_disturbed:
            self._driver.kill()
            self._record_end(self._driver)
            self._driver = None
        if self._driver is None:
            self._start()
        self._watch(0, progress, least_epochs=3)
        last = self._driver
        assert last is not None
        (self._folder / "lives" / f"{last.life}.stop").touch()
        while last.process.poll() is None:
            if clock.stopwatch() - self._advanced > STALL_SECONDS:
                raise SoakFailedError(f"the last driver does not stop: {self._log_tail(last)}")
            self._look_at_the_head()
            clock.sleep(POLL_SECONDS)
        self._record_end(last)
        self._driver = None
        self.companions.finish(self.tally.epoch, lambda: self._tend_companions(progress))
        self.tally.problems += self.companions.problems()

    def _tend_companions(self, progress: Callable[[Tally], None]) -> None:
        if self._is_interrupted():
            raise Interrupted
        self.companions.tend(False)
        progress(self.tally)
        clock.sleep(POLL_SECONDS)
