"""What a fault is, and what is none."""

from __future__ import annotations

from millrace_lab.mutation.mutants import mutants

SOURCE = '''"""Text 1."""
from __future__ import annotations
from typing import TYPE_CHECKING
import logging
if TYPE_CHECKING:
    LIMIT = 7
_log = logging.getLogger("x")
BITS = 8

def größe(a: "x > 1", b: int = 3) -> "x < 1":
    """Less than 5."""
    _log.info("a %s", a < 1)
    if not (a and b):
        raise ValueError(f"{a} < {b + 1}")
    a.x = b + 1
    return "ä" if a < b else a[0]

class C:
    def __repr__(self):
        return str(1 + 1)
    def flag(self):
        self.done(True)
'''


def faults(source: str) -> list[tuple[str, str, str]]:
    found = []
    for mutant in mutants("m.py", source):
        before, after = mutant.changed(source)
        assert before in " ".join(source.split())
        found.append((mutant.kind, mutant.function, after))
    return found


def test_every_fault_of_a_module() -> None:
    assert faults(SOURCE) == [
        ("boundary", "größe", 'def größe(a: "x > 1", b: int = 2) -> "x < 1":'),
        ("boundary", "größe", 'def größe(a: "x > 1", b: int = 4) -> "x < 1":'),
        ("not dropped", "größe", "if (a and b):"),
        ("and/or", "größe", "if not (a or b):"),
        ("raise removed", "größe", "pass"),
        ("statement removed", "größe", "pass"),
        ("arithmetic", "größe", "a.x = b - 1"),
        ("boundary", "größe", "a.x = b + 0"),
        ("boundary", "größe", "a.x = b + 2"),
        ("return None", "größe", "return None"),
        ("comparison", "größe", 'return "ä" if a <= b else a[0]'),
        ("boundary", "größe", 'return "ä" if a < b else a[1]'),
        ("statement removed", "C.flag", "pass"),
        ("constant", "C.flag", "self.done(False)"),
    ]


def test_a_fault_is_one_change() -> None:
    source = "def f(x):\n    return x is not None and x + 1 > 2\n"
    mutated = {mutant.applied(source) for mutant in mutants("m.py", source)}
    assert len(mutated) == len(mutants("m.py", source))
    assert "def f(x):\n    return x is None and x + 1 > 2\n" in mutated
    assert "def f(x):\n    return x is not None or x + 1 > 2\n" in mutated


def test_an_id_goes_with_the_text() -> None:
    source = "def f(x):\n    return x\n"
    (mutant,) = mutants("m.py", source)
    assert mutant.id(source) == mutant.id(source)
    assert mutant.id(source) != mutant.id(source + "\n")
    assert "-    return x\n+    return None" in mutant.diff(source)
