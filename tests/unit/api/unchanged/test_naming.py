"""Names of an operator's columns."""

from __future__ import annotations

from millrace.api.unchanged.naming import RESERVED_BY_TIME, Names


def test_plain_names_are_kept_and_others_replaced() -> None:
    names = Names()
    assert names.new("page", "key1") == "page"
    assert names.new("sum(ms)", "value1") == "value1"
    assert names.new("a.b", "value2") == "value2"
    assert names.new("", "value3") == "value3"
    assert names.new("2nd", "value4") == "value4"


def test_a_name_is_given_once_whatever_its_case() -> None:
    names = Names()
    given = [names.new(name, "x") for name in ("page", "Page", "page", "page_2")]
    assert given == ["page", "Page_2", "page_3", "page_2_2"]


def test_names_of_the_operators_own_are_not_given() -> None:
    names = Names(RESERVED_BY_TIME)
    for reserved in ("window", "Session_Window", "_hi", "name", "emit"):
        assert names.new(reserved, "x").lower() != reserved.lower()
