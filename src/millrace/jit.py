"""How kernels are compiled: cached on disk, without the interpreter lock.

Kernels read mapped pages through pointers, so that one call handles rows spread over any number of
pages. A pointer always comes from an Arrow buffer or a NumPy array that the caller keeps alive;
`load_*` and `store_*` do no checks.

Known rough edge: Numba's cache notices a change of the file that a kernel is in, but not of the
files whose kernels it calls. After changing a kernel that others call, delete their `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

KERNELS: dict[str, Any] = {}
"""By name. Each is compiled once per combination of types it is called with (`signatures`); an
array that cannot be written to is a type of its own."""


def kernel(function: F) -> F:
    """Compile on first use; later processes load the machine code from the cache.

    Arrays that belong together are passed as records or plain tuples. A named tuple's class would
    become part of the cache, which can no longer be read once the class is renamed.
    """
    return _compiled(function)


def part(function: F) -> F:
    """A kernel that only other kernels call: it has no entry for Python, which takes a sixth of the
    time to compile it."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: F, **options: bool) -> F:
    options |= {"cache": True, "nogil": True, "boundscheck": False}
    compiled: Any = cast(Any, numba.njit)(**options)(function)
    KERNELS[f"{function.__module__}.{function.__name__}"] = compiled
    return cast(F, compiled)


def inlined(function: F) -> F:
    """A part of kernels that has no code of its own: it becomes part of each kernel that calls it.

    Give it numbers and records, not arrays or tuples of arrays: to pass an array on, or to take it
    out of a tuple, is to count a reference, which takes longer than the work of most parts.
    """
    return cast(F, numba.njit(inline="always", boundscheck=False)(function))


def _loader(numba_type: Any, bits: int) -> Any:
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            # Arrow aligns buffers to 8 bytes only; a 16-byte value may not be aligned to its size.
            return builder.load(pointer, align=1)

        return numba_type(types.uint64), codegen

    return intrinsic(load)


load_u8 = _loader(types.uint8, 8)
load_u32 = _loader(types.uint32, 32)
load_u64 = _loader(types.uint64, 64)


def _load_like(typingctx: Any, address: Any, number: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_data_type(number).as_pointer())
        return builder.load(pointer, align=1)

    return number(types.uint64, number), codegen


load_like: Any = intrinsic(_load_like)
"""The number at an address, of the same type as a second number."""


def _store_u64(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[1], pointer, align=1)
        return context.get_dummy_value()

    return types.none(types.uint64, types.uint64), codegen


store_u64: Any = intrinsic(_store_u64)


WORD = np.uint64(8)
"""Bytes of a word."""


@inlined
def word_at(pointer: np.uint64, row: np.uint64) -> np.uint64:
    """A word of a column of words."""
    return np.uint64(load_u64(pointer + row * WORD))
