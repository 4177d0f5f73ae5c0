"""`python -m millrace_lab.fuzz TARGET`: fuzz a kind of file or a listener for some minutes."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click

from millrace_lab.fuzz.running import TARGETS, Found, opened, run, run_case, serve_cases

SHOWN_EVERY = 500


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@click.option("--minutes", default=1.0, show_default=True, help="For how long.")
@click.option("--seed", default=1, show_default=True, help="Which cases.")
@click.option("--case", type=int, help="Repeat one case in this process, with its traceback.")
@click.option("--json", "to", type=click.Path(path_type=Path), help="Write the results here.")
@click.option("--serve-from", type=int, hidden=True)
def main(
    target: str,
    minutes: float,
    seed: int,
    case: int | None,
    to: Path | None,
    serve_from: int | None,
) -> None:
    """Mutate one kind of file of a location again and again, and read the location each time; or
    send a listener (serve, flight, page) requests that are right, odd and broken.
    """
    if serve_from is not None:
        serve_cases(target, seed, serve_from)
        return
    if case is not None:
        with (
            tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as work,
            opened(target, Path(work)) as one,
        ):
            click.echo(", ".join(run_case(target, seed, case, one)))
        return
    found = Found(target, seed)
    told = 0
    for found in run(target, seed, minutes):
        for finding in found.findings[told:]:
            click.echo(f"case {finding['case']}: {finding['problem']} {finding.get('at', '')}")
        told = len(found.findings)
        if found.cases % SHOWN_EVERY == 0:
            click.echo(f"{found.cases} cases, {told} findings, {found.seconds:.0f} s")
        if to is not None:
            to.write_text(json.dumps(found.to_json(), indent=1) + "\n")
    ends = ", ".join(f"{number} {end}" for end, number in found.ends.most_common())
    click.echo(f"{target}, seed {seed}: {found.cases} cases, {told} findings; steps: {ends}")
    sys.exit(told > 0)


if __name__ == "__main__":
    main()
