"""The command line of the check."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

import click

from millrace_lab.bench._machine import versions
from millrace_lab.mutation import checking, running
from millrace_lab.mutation.checking import Result, Tree
from millrace_lab.mutation.mutants import Mutant

ROOT = Path(__file__).parents[3]
CONTROLS = 6
"""Places that run without a fault, for which no test may fail."""


@click.command()
@click.option("--sample", default=300, show_default=True, help="How many mutants to draw.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option(
    "--package", "packages", multiple=True, help="Only of these; default: all of the core."
)
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 2))
@click.option("--bar", default=0.85, show_default=True, help="Fail below this share found out.")
@click.option(
    "--json",
    "to",
    type=click.Path(path_type=Path),
    help="Write the figures here, beside those of samples with other seeds.",
)
@click.option("--work", default=ROOT / "build" / "mutation", type=click.Path(path_type=Path))
def main(
    sample: int,
    seed: int,
    packages: tuple[str, ...],
    processes: int,
    bar: float,
    to: Path | None,
    work: Path,
) -> None:
    """Draw mutants of the core and count those that its tests find out."""
    running.preload(ROOT)
    tree = Tree(ROOT, work.resolve(), ROOT / "src" / "millrace")
    chosen = checking.sample(tree, packages or checking.PACKAGES, sample, seed)
    for module, function, before, after in checking.stale(tree):
        click.echo(f"listed as equivalent, but not there: {module} {function}: {before} -> {after}")
    done = 0

    def told(mutant: Mutant, result: Result) -> None:
        nonlocal done
        done += 1
        place = f"{mutant.module}:{mutant.line}"
        click.echo(f"{done:4d} {result.outcome:20} {result.seconds:6.1f} s  {place} {mutant.kind}")

    results = checking.check(tree, packages or checking.PACKAGES, chosen, processes, told, CONTROLS)
    found = checking.summary(results)
    sources = tree.sources(["."])
    survivors = {
        mutant: result
        for mutant, result in results.items()
        if result.outcome in (checking.SURVIVED, checking.UNREACHED)
    }
    for mutant, result in survivors.items():
        click.echo(f"\n{result.outcome}: {mutant.function or 'top'}, {mutant.kind}")
        click.echo(mutant.diff(sources[mutant.module]))
    click.echo("")
    for module, counts in found["modules"].items():
        shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        click.echo(f"{module:45} {shown}")
    click.echo(f"{found['score']:.1%} of {found['mutants']} found out: {found['outcomes']}")
    if to is not None:
        listed = [
            _described(mutant, result, sources[mutant.module])
            for mutant, result in survivors.items()
        ]
        made = {"date": dt.datetime.now(dt.UTC).date().isoformat(), "versions": versions()}
        _write(to, {"seed": seed, **made, **found, "survivors": listed})
    sys.exit(found["score"] < bar)


def _described(mutant: Mutant, result: Result, source: str) -> dict[str, str]:
    before, after = mutant.changed(source)
    return {
        "module": mutant.module,
        "function": mutant.function,
        "before": before,
        "after": after,
        "outcome": result.outcome,
    }


def _write(to: Path, sample: dict[str, Any]) -> None:
    """Add the figures of a sample to a file, in place of those of the same seed."""
    samples = json.loads(to.read_text())["samples"] if to.exists() else []
    others = [other for other in samples if other["seed"] != sample["seed"]]
    samples = sorted([*others, sample], key=lambda of: int(of["seed"]))
    to.write_text(json.dumps({"samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
