"""Wrong options of the benchmarks are refused. Options are only parsed here: nothing can start."""

import click
import pytest

from millrace_lab.bench.cli import bench


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rescale", "--strategies", "live,teleport"], "teleport"),
        (["rescale", "--strategies", ""], "choose from live"),
        (["rescale", "--keys", "many"], "is not a size"),
        (["peers", "--peers", "storm"], "choose from .*flink-sql-heap"),
        (["recovery", "--rate", "0"], "is not a size"),
        (["placement", "--rows", "1.5"], "is not a size"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], said: str) -> None:
    name, *options = arguments
    with pytest.raises(click.BadParameter, match=said):
        bench.commands[name].make_context(name, options)


def test_strategies_are_a_list_in_the_order_given() -> None:
    context = bench.commands["rescale"].make_context("rescale", ["--strategies", "pause, live"])
    assert context.params["strategies"] == ("pause", "live")
