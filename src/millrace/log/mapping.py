"""Files mapped into memory without a descriptor each.

Python's `mmap` keeps a duplicate of the file's descriptor for as long as the mapping lives, so a
reader of a location with some thousand segments would run into the limit of open files. A mapping
itself needs no descriptor: this calls the system's `mmap` and lets the descriptor go.

Invariant: the memory is unmapped when the last view of it is gone, and not before.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

_FAILED = ctypes.c_void_p(-1).value


class _Mapped:
    """Unmaps its memory at the end of its life."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self._unmap = _libc.munmap

    def __del__(self) -> None:
        self._unmap(self.address, self.size)


def map_file(descriptor: int, size: int, *, writable: bool = False) -> memoryview:
    """The bytes of an open file, shared with everybody who maps it; raises `OSError`."""
    if size == 0:
        return memoryview(b"")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array = (ctypes.c_char * size).from_address(address)
    # The array knows the address alone; whoever holds it holds the mapping.
    array.mapped = _Mapped(address, size)  # type: ignore[attr-defined]
    view = memoryview(array).cast("B")
    return view if writable else view.toreadonly()
