"""A location that is restored from a backup: its files are replaced by an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path


class Backup:
    """A copy of a location as it is now, beside it."""

    def __init__(self, location: Path | str) -> None:
        self._location = Path(location)
        self._copy = self._location.with_name(f"{self._location.name}-backup")
        shutil.copytree(self._location, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self._location)
        shutil.copytree(self._copy, self._location)
