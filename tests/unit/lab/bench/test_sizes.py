from __future__ import annotations

import pytest

from millrace_lab.bench._sizes import parse_size, parse_sizes, size_name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000", 1000),
        ("1_000", 1000),
        ("100k", 100_000),
        ("5m", 5_000_000),
        ("2.5M", 2_500_000),
        (" 20K ", 20_000),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "k", "1.5", "10g", "1e3", "1,5", "0.0001k", "_1"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_lists_of_sizes() -> None:
    assert parse_sizes("1k,100k,1m") == [1_000, 100_000, 1_000_000]
    with pytest.raises(ValueError, match="is not a size"):
        parse_sizes("1k,,1m")


@pytest.mark.parametrize("size", [1, 999, 1000, 1500, 12_345, 100_000, 1_000_000, 2_500_000])
def test_names_can_be_read_back(size: int) -> None:
    assert parse_size(size_name(size)) == size


def test_names_are_short() -> None:
    names = [size_name(n) for n in (100, 1_000, 1_500, 100_000, 5_000_000, 2_500_000)]
    assert names == ["100", "1k", "1.5k", "100k", "5m", "2.5m"]
