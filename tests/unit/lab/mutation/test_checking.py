"""The whole check of a toy package: faults that are found out, that hang, and that nobody sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOY = '''"""A toy."""


def larger(a, b):
    if a > b:
        return a
    return b


def count(n):
    total = 0
    while total < n:
        total += 1
    return total


def nobody(x):
    return x


def at_most(x, limit=5):
    return x if x < limit else limit


def squares():
    return {2: 2 * 2}


table = squares()
'''

TESTS = """
from toy.core import numbers


def test_larger(tmp_path):
    assert numbers.larger(1, 2) == 2
    assert numbers.larger(2, 1) == 2


def test_count():
    assert numbers.count(3) == 3


def test_at_most():
    assert numbers.at_most(7) == 5


def test_the_table_that_the_import_makes():
    assert numbers.table[2] == 4
    assert numbers.squares() == numbers.table
"""

EQUIVALENT = """
[[mutant]]
module = "core/numbers.py"
function = "larger"
before = "if a > b:"
after = "if a >= b:"
reason = "Equal numbers are equal."

[[mutant]]
module = "core/numbers.py"
function = "larger"
before = "if a > c:"
after = "if a >= c:"
reason = "It was in the source once."
"""

CHECK = """
import json, sys
from pathlib import Path
from millrace_lab.mutation import checking, running
root = Path(sys.argv[1])
MORE = sys.argv[2]
GONE = ("core/numbers.py", "larger", "if a > c:", "if a >= c:")
running.LIBRARIES = ("pytest",)
running.SECONDS = 3.0
running.preload(root)
sys.path.insert(0, str(root / "src"))
tree = checking.Tree(root, root / "work", root / "src" / "toy", "toy")
chosen = checking.sample(tree, ["core"], 1000, 1)
source = tree.sources(["core"])["core/numbers.py"]
for equivalent in ("none.toml", "one.toml", "none.toml"):
    checking.EQUIVALENT = root / equivalent
    ran = []
    results = checking.check(tree, ["core"], chosen, 2, lambda m, r: ran.append(m), 2)
    assert checking.stale(tree) == ([GONE] if equivalent == "one.toml" else [])
    shown = sorted((m.function, m.changed(source)[1], r.outcome) for m, r in results.items())
    print(json.dumps([len(ran), shown, checking.summary(results)["score"]]))
    if equivalent == "one.toml":
        (root / "tests/unit/core/test_more.py").write_text(MORE)
"""

MORE = """
from toy.core import numbers


def test_nobody():
    assert numbers.nobody(3) == 3
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    files = {
        "src/toy/__init__.py": "",
        "src/toy/core/__init__.py": "",
        "src/toy/core/numbers.py": TOY,
        "tests/unit/core/test_numbers.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "none.toml": "",
        "one.toml": EQUIVALENT,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.stress
def test_a_toy_package(toy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(toy), MORE],
        capture_output=True,
        text=True,
        check=False,
        # The toy's tests need no plugins, and their forks start in a tenth of the time.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines()[-3:])
    ran, shown, score = first
    assert shown == [
        ["at_most", "def at_most(x, limit=4):", "killed"],
        ["at_most", "def at_most(x, limit=6):", "killed"],
        ["at_most", "return None", "killed"],
        ["at_most", "return x if x <= limit else limit", "survived"],
        ["count", "pass", "timeout"],
        ["count", "return None", "killed"],
        ["count", "total += 0", "timeout"],
        ["count", "total += 2", "killed"],
        ["count", "total -= 1", "timeout"],
        ["count", "total = 1", "survived"],
        ["count", "while total <= n:", "killed"],
        ["larger", "if a >= b:", "survived"],
        ["larger", "return None", "killed"],
        ["larger", "return None", "killed"],
        ["nobody", "return None", "no test reaches it"],
        ["squares", "return None", "killed"],
        ["squares", "return {1: 2 * 2}", "killed"],
        ["squares", "return {2: 1 * 2}", "killed"],
        ["squares", "return {2: 2 * 1}", "killed"],
        ["squares", "return {2: 2 * 3}", "killed"],
        ["squares", "return {2: 2 + 2}", "survived"],
        ["squares", "return {2: 3 * 2}", "killed"],
        ["squares", "return {3: 2 * 2}", "killed"],
    ]
    assert ran == 23
    assert score == pytest.approx(18 / 23, abs=1e-4)
    # Again: nothing runs twice, and what is known to be equivalent does not count.
    ran, shown, score = second
    assert ran == 0
    assert ["larger", "if a >= b:", "equivalent"] in shown
    assert score == pytest.approx(18 / 22, abs=1e-4)
    # One more test: only what was not found out runs again.
    ran, shown, score = third
    assert ran == 5
    assert ["nobody", "return None", "killed"] in shown
    assert score == pytest.approx(19 / 23, abs=1e-4)
    # The work tree is as it was.
    assert (toy / "src/toy/core/numbers.py").read_text() == TOY
