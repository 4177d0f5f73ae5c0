"""A schedule: epochs, requests, deaths and faults in an order that a seed determines.

Everything that decides and everything that stores is real: director, planner, strategies, requests,
journal, segments, replicas, following. Executors, the clock and the store are simulated. The oracle
is a dict per table; what must hold is in `checks`.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping

from tests.simulation.checks import Checks
from tests.simulation.driver import Driver, DriverKilled, Hooks
from tests.simulation.executors import Process, SimulatedCluster
from tests.simulation.operators import Rows, Tally
from tests.simulation.store import MemoryStore
from tests.simulation.virtual import VirtualClock, virtual
from tests.unit.driving import fingerprint

from millrace import clock
from millrace.errors import FencedError, MillraceError, StoreError, UsageError
from millrace.ids import OperatorName
from millrace.log import Journal
from millrace.operators.operator import MAIN
from millrace.reconfigure.cluster import DirectorOptions
from millrace.reconfigure.moves import Move
from millrace.reconfigure.requests import Requests
from millrace.reconfigure.strategies import STRATEGIES
from millrace_lab.faults.faulty import Faults, FaultyStore

SETTLE_EPOCHS = 60
"""With stable executors every request is answered within this number of epochs."""
QUIET_EPOCHS = 2
"""After which nothing changes any more."""
KEYS = 16


class World:
    """One schedule."""

    def __init__(self, seed: int, folder: str, say: Callable[[str], None]) -> None:
        self.seed = seed
        self.say = say
        rng = self.rng = random.Random(seed)
        self.time = VirtualClock(random.Random(f"{seed} names"))
        remote = rng.random() < 0.3
        segments = None if remote else folder
        self.memory = MemoryStore(f"sim://{seed}", segments)
        rate = rng.choice((0.0, 0.01, 0.05, 0.15))
        faults = Faults(
            error=rate,
            after=rate / 2,
            partial=rate / 2,
            late=rate / 2,
            twice=rate / 2,
            stale=rate * 2,
            slow=0.5,
            slow_ms=rng.choice((0, 0, 10, 500)),
        )
        self.store = FaultyStore(self.memory, faults, rng)
        self.store.faulty = False
        self.key_groups = rng.choice((8, 8, 16, 32))
        tables = ((MAIN,), (MAIN, "twice"), (MAIN,))
        self.operators = [Tally(f"op{i}", tables[i]) for i in range(rng.choice((1, 1, 1, 2, 3)))]
        self.parallelism = {op.name: rng.randint(1, 4) for op in self.operators}
        self.options = DirectorOptions(
            standby=rng.choice((0, 0, 1, 2)),
            elastic=rng.random() < 0.3,
            spare_executors=rng.choice((0, 0, 1)),
        )
        self.cluster = SimulatedCluster(rng, folder, self.store)
        for _ in range(rng.randint(1, 4)):
            self.cluster.join(rng.choice((1, 1, 2)))
        self.deadly = rng.choice((0.0, 0.01, 0.03))
        """How likely the driver is killed at each point."""
        self.hot = rng.random() < 0.4
        self.tally: Counter[str] = Counter()
        """What happened, and how often."""
        self.zombies: list[Callable[[], None]] = []
        self.moves: list[Move] = []
        """What users of this driver hold."""
        self.late: list[Driver] = []
        """Drivers that were thought dead, and have a manifest to write yet."""
        self.last_batch = 1 << 30
        self.settling = False
        self.checks = Checks(self)
        self.driver: Driver

    def run(self) -> None:
        with virtual(self.time):
            Journal.create(self.memory, self.key_groups)
            self.say(
                f"{self.key_groups} key groups, parallelism {self.parallelism}, {self.options}, "
                f"executors {[p.executor for p in self.cluster.processes]}"
            )
            self.start(self.parallelism)
            # Now and then a long one, in which processes fall far behind.
            turns = 25 if self.rng.random() < 0.03 else self.rng.randint(3, 7)
            for _ in range(turns):
                self.turn()
            self.settle()

    # Input.

    def rows_of(self, batch: int) -> Mapping[OperatorName, Rows]:
        """A batch has the same rows however often it runs."""
        rng = random.Random(f"{self.seed} batch {batch}")
        found = {}
        for operator in self.operators:
            # Towards the end little comes in: there it is about requests, not about rows.
            count = rng.choice((0, 1, 3, 6) if batch < self.last_batch else (0, 0, 1))
            keys = [rng.randrange(KEYS) for _ in range(count)]
            if self.hot:
                keys += [3] * (count // 2)
            found[operator.name] = Counter(map(fingerprint, keys))
        return found

    # The driver.

    def start(self, parallelism: dict[str, int] | None) -> None:
        hooks = Hooks(self.reach, self.loses, self.lingers)
        while True:
            try:
                self.driver = Driver(
                    self.store,
                    self.cluster,
                    self.operators,
                    parallelism,
                    self.options,
                    hooks,
                    self.rows_of,
                )
                return
            except StoreError as error:
                self.say(f"the driver does not start: {error}")

    def restart(self, why: BaseException) -> None:
        self.say(f"the driver is gone ({why}); a new one starts")
        self.driver.director.close()
        self.moves.clear()
        self.cluster.renew()
        self.start(None)

    def turn(self) -> None:
        """One epoch, and what happens around it."""
        rng = self.rng
        self.store.faulty = self.cluster.faulty = rng.random() < 0.5
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.ask()
        if rng.random() < 0.25:
            self.lose()
        if rng.random() < 0.25:
            self.join()
        if self.cluster.requested > len(self.cluster.living()) and rng.random() < 0.5:
            self.join()
        if rng.random() < 0.7:
            self.notice()
        if not self.cluster.living():
            self.join()
        self.aside()
        self.attempt(idle=rng.random() < 0.2)

    def attempt(self, *, idle: bool = False) -> None:
        """An epoch, or with `idle` what happens while no batch comes.

        If it fails, the query is started again.
        """
        driver = self.driver
        if idle and not driver.director.waits_for_epoch:
            return
        try:
            if driver.director.restarting.is_set() and self.rng.random() < 0.8:
                self.say("the query is stopped and started again")
                driver.director.adopt()
                driver.full = True
            self.checks.choosing(driver)
            driver.choose()
            self.checks.chosen(driver)
            if idle:
                driver.idle()
            else:
                driver.epoch()
        except (DriverKilled, StoreError) as error:
            self.restart(error)
        except FencedError as error:
            # What a driver before this one had asked of the store, and was told had failed.
            self.tally["late manifest"] += 1
            self.restart(error)
        self.checks.committed(self.driver.trail.epoch)
        self.checks.answers(self.driver)

    def aside(self) -> None:
        """What the threads beside the epochs do: requests are looked for, key groups followed."""
        director = self.driver.director
        if self.rng.random() < 0.8:
            try:
                director.poll()
            except MillraceError as error:
                self.say(f"poll: {error}")
        for _ in range(self.rng.choice((0, 1, 2))):
            if not director.has_work():
                return
            try:
                clock.sleep(director.follow_once())
            except MillraceError as error:
                director.follow_failed(error)

    def reach(self, point: str) -> None:
        """Somewhere inside an epoch."""
        rng = self.rng
        if self.settling:
            return
        if rng.random() < self.deadly:
            if point == "before the manifest" and rng.random() < 0.5:
                self.late.append(self.driver)
            self.tally[f"driver killed {point}"] += 1
            raise DriverKilled(point)
        if rng.random() < 0.1:
            self.aside()
        if rng.random() < 0.03:
            self.ask()
        if rng.random() < 0.03 and len(self.cluster.living()) > 1:
            self.lose()
        if rng.random() < 0.03 and self.cluster.living():
            # Its Python workers end; what they had followed is gone, and nobody is told.
            rng.choice(self.cluster.living()).cache.clear()
            self.tally["worker ended"] += 1
        if self.zombies and rng.random() < 0.1:
            self.zombies.pop(rng.randrange(len(self.zombies)))()
            self.tally["late task"] += 1

    # Executors.

    def lose(self) -> None:
        living = self.cluster.living()
        if living:
            process = self.rng.choice(living)
            noticed = self.rng.random() < 0.5
            self.say(f"{process.name} dies, {'noticed' if noticed else 'unnoticed'}")
            self.kill(process, noticed=noticed)

    def kill(self, process: Process, *, noticed: bool) -> None:
        self.cluster.kill(process, noticed=noticed)
        self.tally["executor killed"] += 1
        self.checks.died(self.driver.trail.epoch)

    def notice(self) -> None:
        """Spark finds out who is dead."""
        if len(self.cluster.living()) < len(self.cluster.processes):
            self.cluster.notice()
            self.checks.died(self.driver.trail.epoch)

    def join(self) -> None:
        process = self.cluster.join(self.rng.choice((1, 1, 2)))
        self.say(f"{process.name} joins with {process.executor.cores} cores")

    def loses(self, process: Process) -> bool:
        if self.settling or self.rng.random() > 0.02 or len(self.cluster.living()) < 2:
            return False
        self.say(f"{process.name} dies after writing a segment")
        self.kill(process, noticed=False)
        return True

    def lingers(self, attempt: Callable[[], None]) -> None:
        if not self.settling and self.rng.random() < 0.05:
            self.zombies.append(attempt)

    # Requests.

    def ask(self) -> None:
        """A user asks for something, in the program or from another terminal."""
        rng = self.rng
        kind = rng.choice(("rescale", "rescale", "rescale", "move", "drain", "undrain", "cancel"))
        details = self.details(kind)
        strategy = rng.choice((*STRATEGIES, "live", "live"))
        if rng.random() < 0.02:
            strategy = "teleport"
        self.say(f"asked at epoch {self.driver.trail.epoch}: {kind} {strategy} {details}")
        try:
            if kind == "cancel" and self.moves and rng.random() < 0.5:
                rng.choice(self.moves).cancel()
            elif kind == "cancel" or rng.random() < 0.5:
                Requests(self.store).submit(kind, **details, strategy=strategy)
            else:
                self.moves.append(self.driver.director.submit(kind, strategy, **details))
        except (UsageError, StoreError) as error:
            self.say(f"  {error}")

    def details(self, kind: str) -> dict[str, object]:
        rng = self.rng
        names = [p.name for p in self.cluster.processes] or ["executor-0"]
        if kind == "cancel":
            ids = [
                path.removeprefix("requests/").removesuffix(".json")
                for path in self.memory.list("requests")
                if path.endswith(".json") and ".answer" not in path
            ]
            return {"request": rng.choice([*ids[-3:], "nothing"])}
        if kind in ("drain", "undrain"):
            return {"executor": rng.choice((*names, "executor-99"))}
        details: dict[str, object] = {}
        if rng.random() < 0.3:
            details["operator"] = rng.choice([*(op.name for op in self.operators), "nobody"])
        if kind == "rescale":
            details["parallelism"] = rng.choice((1, 2, 3, 4, 5, rng.randint(0, 40)))
        else:
            count = rng.randint(1, self.key_groups // 2)
            details["key_groups"] = sorted(rng.sample(range(self.key_groups), count))
            details["to"] = rng.choice(names)
        return details

    # The end.

    def settle(self) -> None:
        """No more faults: every request is answered, everything owned, and it stays so."""
        self.settling = True
        self.last_batch = self.driver.batch + 1
        self.store.faulty = self.cluster.faulty = False
        self.notice()
        while len(self.cluster.living()) < max(1, self.rng.choice((1, self.cluster.requested))):
            self.join()
        for zombie in self.zombies:
            zombie()
        for driver in self.late:
            if driver.trail.epoch < self.driver.trail.epoch:
                self.checks.fenced(driver)
                self.tally["late driver fenced"] += 1
        self.say("from here on nothing fails")
        if self.rng.random() < 0.5:
            self.settle_without_rows()
        quiet = 0
        for _ in range(SETTLE_EPOCHS):
            self.driver.director.poll()
            for _ in range(3):
                self.aside()
            self.attempt()
            quiet = quiet + 1 if self.checks.is_settled() else 0
            if quiet > QUIET_EPOCHS:
                break
        self.checks.settled(quiet > QUIET_EPOCHS)
        self.checks.state(self.driver.trail.epoch)
        self.tally["epoch"] += self.driver.trail.epoch
        self.tally["fault of the store"] += self.store.faults
        self.tally["fault of the cluster"] += self.cluster.faults

    def settle_without_rows(self) -> None:
        """Every request is answered although no batch comes."""
        self.say("no batch comes for a while")
        if not self.driver.trail.epoch:
            # A request waits for the first epoch, whatever comes of it.
            self.attempt()
        for _ in range(SETTLE_EPOCHS):
            self.driver.director.poll()
            for _ in range(3):
                self.aside()
            self.attempt(idle=True)
            if not Requests(self.memory).pending():
                break
        self.checks.answered()
        self.tally["settled without rows"] += 1


def run(seed: int, say: Callable[[str], None] = lambda text: None) -> Counter[str]:
    """Run the schedule of a seed; raises what it finds, and says how often what happened."""
    root = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="millrace-sim-", dir=root)
    try:
        world = World(seed, folder, say)
        world.run()
        return world.tally
    finally:
        shutil.rmtree(folder, ignore_errors=True)
