"""The Python environments of foreign engines: where they are, and how one of them is started.

An environment is a folder with an interpreter, made by `make peers` of the versions pinned in
`src/millrace_lab/environments`. Its stamp is written last, so that a half-made one counts as
missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import millrace_lab.bench._foreign
from millrace_lab.bench._side_process import SideProcess

STAMP = ".stamp"
DEFAULT = Path(".peers")


def exists(environments: Path, name: str) -> bool:
    """Whether an environment is there, and whole."""
    folder = environments / name
    return (folder / STAMP).is_file() and (folder / "bin" / "python").exists()


def missing_message(environments: Path, left_out: dict[str, list[str]]) -> str:
    """What to tell the user about environments that are missing, with their sides."""
    listed = "\n".join(
        f"  {environments / name}: {', '.join(sides)}" for name, sides in left_out.items()
    )
    return (
        f"These environments are missing, and their sides are left out:\n{listed}\n"
        "Make them with `make peers` in Millrace's source tree, or name the folder they are in "
        "with --environments."
    )


def start(environments: Path, name: str, side: str, workdir: Path) -> SideProcess:
    """Start a side of an environment."""
    # Not resolved: a virtual environment's interpreter is known by the link that leads to it.
    python = Path(os.path.abspath(environments / name / "bin" / "python"))
    return SideProcess(
        side,
        workdir,
        program=(str(python), "-m", "engines"),
        environment={
            "PYTHONPATH": str(Path(millrace_lab.bench._foreign.__file__).parent),
            "PATH": os.pathsep.join(_paths(python)),
            "VIRTUAL_ENV": str(python.parent.parent),
        },
    )


def _paths(python: Path) -> Iterable[str]:
    """Programs of the environment come first: engines start `python` by its name."""
    return str(python.parent), os.environ.get("PATH", os.defpath)
