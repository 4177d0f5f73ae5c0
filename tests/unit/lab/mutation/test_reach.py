"""Which tests a mutant runs against, and in which order."""

from __future__ import annotations

from millrace_lab.mutation import reach


def called(test: str, seconds: float, function: str = "log/a.py:f") -> reach.Called:
    return reach.Called(test, seconds, frozenset({function}))


def test_the_closest_tests_come_first() -> None:
    tests = [
        called("tests/unit/state/test_a.py::far", 0.1),
        called("tests/unit/log/test_b.py::q", 0.1),
        called("tests/property/log/test_a.py::p", 0.1),
        called("tests/unit/log/test_a.py::slow", 5.0),
        called("tests/unit/log/test_a.py::quick", 0.2),
    ]
    found = [t.test for t in reach.tests_of("log/a.py", "f", "", set(), tests)]
    assert found == [
        "tests/unit/log/test_a.py::quick",
        "tests/unit/log/test_a.py::slow",
        "tests/property/log/test_a.py::p",
        "tests/unit/log/test_b.py::q",
        "tests/unit/state/test_a.py::far",
    ]
    assert reach.tests_of("log/a.py", "g", "", set(), tests) == []
    assert len(reach.tests_of("log/a.py", "", "", set(), tests)) == 5


def test_what_takes_too_long_is_cut_off() -> None:
    limit = reach.LONGEST_SECONDS
    tests = [called("tests/unit/log/test_a.py::b", limit), called("tests/unit/log/test_a.py::a", 1)]
    (found,) = reach.tests_of("log/a.py", "f", "", set(), tests)
    assert found.test.endswith("::a")
    assert reach.tests_of("log/a.py", "f", "", set(), tests[:1]) == tests[:1]


def test_tests_of_a_kernel_are_those_of_its_importers() -> None:
    sources = {
        "state/k.py": "from millrace.jit import kernel\n@kernel\ndef f(): pass\n",
        "state/a.py": "from millrace.state.k import f\n",
        "state/b.py": "from millrace.state import a\n",
        "state/c.py": "import os\n",
    }
    callers = reach.importers("state/k.py", sources)
    assert callers == {"state/a.py", "state/b.py"}
    tests = [
        called("tests/unit/state/test_a.py::t", 1.0, "state/a.py:g"),
        called("tests/unit/state/test_c.py::t", 1.0, "state/c.py:h"),
    ]
    found = reach.tests_of("state/k.py", "f", sources["state/k.py"], callers, tests)
    assert [t.test for t in found] == ["tests/unit/state/test_a.py::t"]
