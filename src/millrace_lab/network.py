"""Machines that are network namespaces, on a network that can be disturbed packet by packet.

Every machine has an address in 10.231.0.0/24 and a TUN device; all devices end in this process,
which hands packets on by their address. So a packet can be held back, dropped at random, or dropped
because its machine is cut off, and TCP notices what it would notice in a data centre: nothing,
until it times out. `tc netem` would do the same, but is a module that many kernels lack.

    with Network() as network:
        worker = network.machine("worker")
        subprocess.run(worker.command("ip", "address"))
        network.cut(worker)

Needs root, `ip` and /dev/net/tun: `why_not` says what is missing. The namespaces and devices are
gone when the block ends; if the process is killed, its devices are, and `ip netns delete` removes
the rest, which are called mr-PID-NAME.

Rough edge: one thread of Python carries all packets, some ten thousand a second. Packets are as
large as a TUN device allows, so that is enough for a small cluster, and too little for a benchmark.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SUBNET = "10.231.0"
HERE = f"{SUBNET}.1"
"""The address of this machine itself."""
MTU = 60_000
_DEVICE = Path("/dev/net/tun")
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000


@dataclass(frozen=True)
class Machine:
    """A network namespace with an address."""

    name: str
    namespace: str
    address: str

    def command(self, *command: str) -> list[str]:
        """The command that runs a command in there."""
        return ["ip", "netns", "exec", self.namespace, *command]


@dataclass(frozen=True)
class Weather:
    """What happens to packets from or to a machine."""

    delay: float = 0.0
    """Seconds that each is late."""
    loss: float = 0.0
    """The share that is lost."""
    is_cut: bool = False


CALM = Weather()


def why_not() -> str | None:
    """Why this machine cannot have such a network; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command: apt-get install iproute2"
    if not _DEVICE.exists():
        return f"there is no {_DEVICE}"
    trial = f"mr-{os.getpid()}-trial"
    made = subprocess.run(["ip", "netns", "add", trial], capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", trial], check=True)
    return None


class Network:
    """Some machines, and this one, which is at `HERE`."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._devices: dict[bytes, int] = {}
        """Address -> the file of its device."""
        self._weather: dict[bytes, Weather] = {}
        self._machines: list[Machine] = []
        self.carried = self.lost = 0
        """Packets so far."""
        self._wake, self._woken = os.pipe()
        self._stopped = False
        self._thread = threading.Thread(target=self._carry, name="network", daemon=True)

    def __enter__(self) -> Network:
        device = f"mr{os.getpid()}"
        self._add(device, HERE)
        _ip("address", "add", f"{HERE}/24", "dev", device)
        _ip("link", "set", device, "mtu", str(MTU), "up")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped = True
        os.write(self._woken, b"x")
        self._thread.join()
        for file in (*self._devices.values(), self._wake, self._woken):
            os.close(file)
        for machine in self._machines:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", machine.namespace)

    def machine(self, name: str) -> Machine:
        """A new machine."""
        number = len(self._machines) + 2
        made = Machine(name, f"mr-{os.getpid()}-{name}", f"{SUBNET}.{number}")
        _ip("netns", "add", made.namespace)
        self._machines.append(made)
        device = f"mr{os.getpid()}-{number}"
        self._add(device, made.address)
        _ip("link", "set", device, "netns", made.namespace)
        for command in (
            ("address", "add", f"{made.address}/24", "dev", device),
            ("link", "set", device, "mtu", str(MTU), "up"),
            ("link", "set", "lo", "up"),
        ):
            subprocess.run(made.command("ip", *command), check=True, capture_output=True)
        return made

    def disturb(self, machine: Machine, weather: Weather) -> None:
        """From now on this happens to the machine's packets; `CALM` ends it."""
        with self._lock:
            self._weather[_packed(machine.address)] = weather

    def cut(self, machine: Machine) -> None:
        """Nothing arrives there or comes from there any more, and nobody is told."""
        self.disturb(machine, Weather(is_cut=True))

    def mend(self, machine: Machine) -> None:
        self.disturb(machine, CALM)

    def _add(self, device: str, address: str) -> None:
        file = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI))
        with self._lock:
            self._devices[_packed(address)] = file
        os.write(self._woken, b"x")

    def _carry(self) -> None:
        """Hand packets on until the network ends."""
        late: list[tuple[float, int, int, bytes]] = []
        """When a packet is due, its number, and the device it goes to."""
        while not self._stopped:
            with self._lock:
                files = [self._wake, *self._devices.values()]
            wait = max(0.0, late[0][0] - time.monotonic()) if late else 1.0
            ready, _, _ = select.select(files, [], [], wait)
            for file in ready:
                if file == self._wake:
                    os.read(file, 4096)
                    continue
                with contextlib.suppress(OSError):
                    while True:
                        self._forward(os.read(file, 65536), late)
            while late and late[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(late)
                _write(target, packet)

    def _forward(self, packet: bytes, late: list[tuple[float, int, int, bytes]]) -> None:
        source, address = packet[12:16], packet[16:20]
        with self._lock:
            target = self._devices.get(address)
            weather = [self._weather.get(end, CALM) for end in (source, address)]
        if packet[0] >> 4 != 4 or target is None:
            return
        self.carried += 1
        if any(each.is_cut or self._random.random() < each.loss for each in weather):
            self.lost += 1
            return
        delay = sum(each.delay for each in weather)
        if delay:
            heapq.heappush(late, (time.monotonic() + delay, self.carried, target, packet))
        else:
            _write(target, packet)


def _write(device: int, packet: bytes) -> None:
    # A device that has no room drops packets, as a wire does.
    with contextlib.suppress(OSError):
        os.write(device, packet)


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
