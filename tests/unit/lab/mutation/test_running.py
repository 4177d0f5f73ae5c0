"""Faults in kernels: nothing that was compiled without the fault is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = """
import numba

@numba.njit(inline="always")
def part(x):
    return x + 1
"""

WHOLE = """
import numba
from toy.parts import part

@numba.njit(cache=True)
def whole(x):
    return part(x)
"""

PROGRAM = """
import sys
from pathlib import Path
from millrace_lab.mutation import running
root = Path(sys.argv[1])
running.LIBRARIES = ("numba",)
running.preload(root / "src")
fault = running.Fault("toy.parts", root / "src/toy/parts.py", Path(sys.argv[2]).read_text())

def run(cache, *faults):
    def call():
        running.use_kernels(cache)
        sys.meta_path[:0] = faults
        from toy.whole import whole
        return whole(1)
    return running.fork(call, root / "log", 60).wait()

found = [run(root / "kernels"), run(root / "kernels", fault)]
running.kernel_cache(root / "kernels", root / "own", {"parts.py", "whole.py"})
print([*found, run(root / "own", fault), run(root / "kernels")])
"""


def test_a_kernel_is_compiled_again_with_the_fault_in_one_of_its_parts(tmp_path: Path) -> None:
    for name, text in {"__init__": "", "parts": PARTS, "whole": WHOLE}.items():
        (tmp_path / "src/toy").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"src/toy/{name}.py").write_text(text)
    (tmp_path / "faulty.py").write_text(PARTS.replace("x + 1", "x + 10"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path / "faulty.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    # The second is why there is a cache for each fault: Numba looks at a kernel's own file only.
    assert done.stdout == "[2, 2, 11, 2]\n", done.stdout + done.stderr
    assert not list((tmp_path / "src").rglob("*.nb[ic]"))
