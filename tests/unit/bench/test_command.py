"""Wrong options of the benchmarks are refused before anything starts."""

import pytest
from click.testing import CliRunner

from millrace.cli.bench import bench


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rescale", "--strategies", "live,teleport"], "teleport"),
        (["rescale", "--strategies", ""], "choose from live"),
        (["rescale", "--keys", "many"], "is not a size"),
        (["recovery", "--rate", "0"], "is not a size"),
        (["placement", "--rows", "1.5"], "is not a size"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 2
    assert said in done.output
