"""All benchmarks in one run, and the pages made of results."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from millrace_lab.bench._contract import BenchmarkError
from millrace_lab.bench.cli._group import bench
from millrace_lab.bench.cli._running import BENCHMARKS, execute, module, quick_option


@bench.command("all")
@quick_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="src/millrace_lab/results",
    show_default=True,
    help="The directory for the results, one JSON file per benchmark.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Make the pages of the results in this folder. Default: `docs`, if it is there; none "
    "with --quick.",
)
def all_command(quick: bool, out: Path, docs: Path | None) -> None:
    """Every benchmark, one after the other, if what it needs is installed. Then the pages.

    \b
    Examples:
      millrace bench all
      millrace bench all --quick --out /tmp/results
      millrace bench all --quick --out /tmp/results --docs /tmp/pages
    """
    if docs is None and not quick and Path("docs").is_dir():
        docs = Path("docs")
    codes = []
    for name in BENCHMARKS:
        options = module(name).Options()
        why_not = getattr(module(name), "why_not", None)
        reason = None if why_not is None else why_not(options)
        if reason is not None:
            click.echo(f"{name}: {reason}")
            continue
        if docs is not None and hasattr(options, "images"):
            options = replace(options, images=docs / "images")
        codes.append(execute(name, options, quick, out / f"{name}.json", None))
    if docs is not None:
        _make_pages(out, docs, None, plots=True)
    sys.exit(max(codes))


@bench.command("report")
@click.option(
    "--results",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="src/millrace_lab/results",
    show_default=True,
    help="The folder with the results.",
)
@click.option(
    "--docs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default="docs",
    show_default=True,
    help="The folder for the pages.",
)
@click.option(
    "--readme",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also replace the table of results in this file.",
)
@click.option("--plots/--no-plots", default=True, help="Draw the pictures.")
def report_command(results: Path, docs: Path, readme: Path | None, plots: bool) -> None:
    """Rebuild the pages about benchmarks from the results of earlier runs.

    \b
    Examples:
      millrace bench report
      millrace bench report --readme README.md
      millrace bench report --results /tmp/results --docs /tmp/pages --no-plots
    """
    _make_pages(results, docs, readme, plots=plots)


def _make_pages(results: Path, docs: Path, readme: Path | None, *, plots: bool) -> None:
    from millrace_lab.bench import _result_plots, report

    try:
        found = report.load(results)
        images = docs / "images"
        if plots:
            _result_plots.draw(found, images)
        drawn = [path.name for path in images.glob("*.png")]
        for name, text in report.pages(found, drawn).items():
            (docs / name).write_text(text)
            click.echo(f"written: {docs / name}")
        reliability = docs / "reliability.md"
        if "soak" in found and reliability.exists():
            reliability.write_text(report.with_soak(reliability.read_text(), found["soak"]))
            click.echo(f"written: {reliability}")
        if readme is not None:
            readme.write_text(report.with_summary(readme.read_text(), found))
            click.echo(f"written: {readme}")
    except BenchmarkError as error:
        raise click.ClickException(str(error)) from error
