"""A clock that jumps, for everything in a soak: the JVMs as well as Python.

The time of day is asked of libc. A small library, compiled here and loaded before libc, adds an
offset that it reads from eight bytes of a mapped file: writing them makes the clock of every
process jump at once. Clocks that only go forward are left alone, as when an
administrator sets the time.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int (*libc_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    libc_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("MILLRACE_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) offset = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!libc_clock) begin();
    int failed = libc_clock(clock, at);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def missing() -> str:
    """What clock jumps need and this machine does not have; empty if nothing."""
    return "" if shutil.which("cc") else "a C compiler (cc)"


class JumpingClock:
    """The offset of all clocks, in seconds."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._library = folder / "clock.so"
        self.jump_to(0)
        source = folder / "clock.c"
        source.write_text(SOURCE)
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "MILLRACE_CLOCK": str(self._file)}

    def jump_to(self, seconds: int) -> None:
        # In place: the file is mapped.
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=q", seconds))
