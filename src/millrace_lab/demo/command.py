"""`millrace demo`: a stream on real executors, rescaled, hit by a kill, queried, and checked.

The work is done in a thread of its own. Ctrl-C only sets an event that this thread looks at
between its steps: an exception in the middle of a call to the JVM would leave the connection
unusable, and then nothing could be stopped properly. Whatever Spark, its JVM and its workers print
goes to a file, so the terminal belongs to the table; the file is named when something fails.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from py4j.protocol import Py4JError
from rich.console import Console

from millrace.cli.failures import INTERRUPTED, interrupts_set
from millrace_lab.demo.story import Demo


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """This process's standard error, and that of all it starts, into a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(target)


def watch(demo: Demo) -> None:
    """Run the demonstration in a thread; after Ctrl-C, help it to an end."""
    thread = threading.Thread(target=demo.run, name="millrace-demo")
    thread.start()
    announced = False
    while thread.is_alive():
        thread.join(0.1)
        if demo.stopping.is_set() and thread.is_alive():
            if not announced:
                demo.console.print("stopping ...")
                announced = True
            spark = demo.spark
            if spark is not None:
                try:
                    spark.sparkContext.cancelAllJobs()
                except (Py4JError, OSError, AttributeError, AssertionError):
                    # The session is being stopped by the other thread: that is what is wanted.
                    thread.join(0.5)


def shows_windows() -> bool:
    """Whether a browser that is opened here would be seen, and would not take the terminal."""
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and (has_display or sys.platform == "darwin")


@click.command(
    epilog="""\b
Examples:
  millrace demo
  millrace demo --minutes 5
  millrace demo --headless --minutes 1 --keep /tmp/demo
"""
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="How long the stream runs, roughly, once Spark has started; every act has some epochs.",
)
@click.option("--headless", is_flag=True, help="Open no browser; the page is still served.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="The page's port.  [default: a free one]",
)
@click.option(
    "--rows-per-epoch",
    type=click.IntRange(min=1),
    default=50_000,
    show_default=True,
    help="Readings in each epoch; there is one a second if the machine keeps up.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the location and Spark's log in this directory, which must be new or empty.",
)
def demo(minutes: float, headless: bool, port: int, rows_per_epoch: int, keep: Path | None) -> None:
    """Watch a stream of sensor readings on real executors, live in the browser.

    It is rescaled 2 -> 4 -> 2 while it runs, loses an executor, answers SQL, and is compared with a
    batch over the same rows at the end. Ctrl-C at any time leaves nothing running.

    Exit codes: 0 if the state was equal to the batch's, 1 if not or if something failed, 130 after
    Ctrl-C.
    """
    if keep is not None and keep.is_dir() and any(keep.iterdir()):
        raise click.UsageError(f"{keep} is not empty; --keep needs a new or empty directory.")
    folder = keep or Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "spark.log"
    run = Demo(Console(), folder.resolve(), minutes * 60, rows_per_epoch, port)
    if not headless and shows_windows():
        run.on_page = webbrowser.open
    with interrupts_set(run.stopping), stderr_to(log):
        watch(run)
    interrupted = run.stopping.is_set()
    failed = run.failure is not None and not interrupted
    if failed:
        click.echo(f"the demonstration failed: {run.failure}\nSpark's log is {log}", err=True)
    shutil.rmtree(folder / "spark", ignore_errors=True)
    if keep is not None:
        click.echo(f'kept in {keep}; read it with millrace.open("{run.location}")')
    elif not failed:
        shutil.rmtree(folder, ignore_errors=True)
    if interrupted:
        click.echo("interrupted; nothing is left running")
        sys.exit(INTERRUPTED)
    if failed or not run.summary.equal:
        sys.exit(1)
