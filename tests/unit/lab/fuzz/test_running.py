"""A few cases of every fuzzer; `make stress` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stress import few

from millrace_lab.fuzz import corpus as corpora
from millrace_lab.fuzz.cases import CASES
from millrace_lab.fuzz.corpus import Corpus
from millrace_lab.fuzz.listeners import LISTENERS
from millrace_lab.fuzz.running import on_copies, opened, run_case, run_here


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpora.make(tmp_path_factory.mktemp("fuzz") / "corpus")


@pytest.mark.parametrize("cases", few([10, 40], 10))
@pytest.mark.parametrize("target", sorted(CASES))
def test_nothing_is_found(target: str, cases: int, corpus: Corpus, tmp_path: Path) -> None:
    found = run_here(target, 13, cases, on_copies(target, corpus, tmp_path))
    assert found.findings == []
    assert found.cases == cases


@pytest.mark.parametrize("cases", few([25, 200], 25))
@pytest.mark.parametrize("target", sorted(LISTENERS))
def test_nothing_is_found_by_requests(target: str, cases: int, tmp_path: Path) -> None:
    with opened(target, tmp_path) as run:
        found = run_here(target, 13, cases, run)
    assert found.findings == []
    assert found.cases == cases


# A list whose elements have no position; a struct's column with a negative length; a state that a
# sealed manifest calls by another name; a list of which a sealed manifest leaves out a segment, and
# one of which it has a segment twice; a list without its key's other states; an answer with null
# for the seconds that a move took.
@pytest.mark.parametrize(
    ("target", "seed", "case"),
    [
        ("segment", 71, 220),
        ("segment", 112, 856),
        ("manifest", 71, 575),
        ("manifest", 112, 507),
        ("manifest", 113, 755),
        ("manifest", 115, 906),
        ("request", 117, 244),
    ],
)
def test_what_was_found_once_is_not_found_again(
    target: str, seed: int, case: int, corpus: Corpus, tmp_path: Path
) -> None:
    assert run_case(target, seed, case, on_copies(target, corpus, tmp_path))


# A batch in an exchange whose header is broken, and a ticket in which two columns have one name:
# both were refused with a traceback, as if the server were at fault.
@pytest.mark.parametrize(("target", "seed", "case"), [("flight", 1, 922), ("flight", 1, 1991)])
def test_a_request_that_was_found_once_is_not_found_again(
    target: str, seed: int, case: int, tmp_path: Path
) -> None:
    with opened(target, tmp_path) as run:
        assert run_case(target, seed, case, run)


def test_a_case_is_the_same_every_time(corpus: Corpus, tmp_path: Path) -> None:
    run = on_copies("manifest", corpus, tmp_path)
    ends = [run_case("manifest", 3, 5, run) for _ in range(2)]
    assert ends[0] == ends[1]


def test_what_was_not_mutated_is_read(corpus: Corpus) -> None:
    assert len(corpus.shown[6]["tested."]) == 40
    assert all(rows for rows in corpus.shown[3].values())
