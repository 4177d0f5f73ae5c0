"""Headless Chromium: a page's document after its scripts have run, and its picture."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.waiting import DEADLINE

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--window-size=1360,1060",
)


def _run(url: str, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None, "no Chromium: scripts/ensure-chromium installs it"
    return subprocess.run(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, url],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )


def document(url: str, profile: Path, milliseconds: int = 4000) -> str:
    """The document after so much of the page's own time, which waits for its requests."""
    return _run(url, profile, f"--virtual-time-budget={milliseconds}", "--dump-dom").stdout


def picture(url: str, profile: Path, to: Path, milliseconds: int = 4000) -> None:
    _run(url, profile, f"--virtual-time-budget={milliseconds}", f"--screenshot={to}")
