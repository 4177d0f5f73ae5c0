"""What every benchmark has: its options, a working directory, steps to show, and a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from millrace_lab.bench._console import Steps
from millrace_lab.bench._contract import Result

OptionsT = TypeVar("OptionsT")


class Benchmark(ABC, Generic[OptionsT]):
    """One run of a benchmark."""

    name: ClassVar[str]

    def __init__(self, options: OptionsT, workdir: Path, steps: Steps) -> None:
        self._options = options
        self._workdir = workdir
        self._steps = steps
        self._result = Result(self.name)

    @classmethod
    def measure(cls, options: OptionsT, workdir: Path, steps: Steps) -> Result:
        """Run the benchmark in a working directory of its own."""
        return cls(options, workdir, steps).run()

    @abstractmethod
    def run(self) -> Result: ...
