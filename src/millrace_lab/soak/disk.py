"""The disk of a soak: a small file system of its own, which can be filled and made read-only.

It is mounted in a mount namespace of the supervisor's own, so nobody else sees it and nothing of it
stays behind, however the supervisor ends. That takes root; without it, these acts are left out.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from millrace import clock
from millrace.errors import MillraceError

CLONE_NEWNS = 0x00020000
SIZE = 1 << 30
ROOM = 32 * 1024
"""Bytes that a full disk has left: enough for a small file, not for an epoch."""


class Disk:
    """A folder; with root, a file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing = missing()
        """Why it cannot be filled; empty if it can."""
        path.mkdir(parents=True)
        if self.missing:
            return
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
            self.missing = f"the right to unshare mounts ({os.strerror(ctypes.get_errno())})"
            return
        _mount("--make-rprivate", "/")
        _mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path))

    def fill(self) -> None:
        """No room, without using it up: the file system becomes as small as its content."""
        for _ in range(100):
            usage = shutil.disk_usage(self.path)
            if self._remount(f"size={usage.used + ROOM}"):
                return
            # Files were written in between.
            clock.sleep(0.02)
        raise MillraceError(f"could not fill {self.path}: it grows too fast.")

    def protect(self) -> bool:
        """Read-only; False if somebody was writing all the time."""
        for _ in range(500):
            if self._remount("ro"):
                return True
            clock.sleep(0.01)
        return False

    def restore(self) -> None:
        if not self.missing and not self._remount(f"rw,size={SIZE}"):
            raise MillraceError(f"could not make {self.path} writable again.")

    def close(self) -> None:
        """Unmount it; what is on it is gone."""
        if not self.missing:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)

    def _remount(self, options: str) -> bool:
        command = ["mount", "-o", f"remount,{options}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0


def missing() -> str:
    """What a disk of its own needs and this process does not have; empty if nothing."""
    if os.geteuid():
        return "root"
    return "" if shutil.which("mount") else "mount(8)"


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
