"""The result of a benchmark as a file: machine, versions, settings, each run's figures and what makes them invalid.

Written to `benchmarks/` of the state folder. A file is only ever compared with another, never read by the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.machine import Machine
from include.ground.errors import Terminal
from include.ground.settings import Settings

PLATFORM = "headrace"
FORMAT = 1

Figures = dict[str, float]
"""Values by the name that tables show, which ends with the unit."""


class ResultUnreadable(Terminal):
    """A file is not the result of a benchmark, or one of another format."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is not a result of headrace bench: {why}", "a file that headrace bench run wrote")


class Measurement(BaseModel):
    """Figures of one run. `setting`: what was requested; `problems`: what makes the figures invalid."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: int
    system: str
    dataset: str
    mode: str
    setting: str
    figures: Figures
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what must be equal for figures to be comparable."""
        return self.dataset, self.mode, self.setting, self.system


class BenchResult(BaseModel):
    """The results of all runs of one command."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    command: str
    at: datetime
    machine: Machine
    measurements: tuple[Measurement, ...]

    @property
    def is_valid(self) -> bool:
        """Whether something was measured and every figure counts."""
        return bool(self.measurements) and not any(each.problems for each in self.measurements)


def benchmarks_path(settings: Settings) -> Path:
    """Folder of the results of `headrace bench`."""
    return settings.state / "benchmarks"


def write_result(settings: Settings, result: BenchResult) -> Path:
    """Write the result to the state folder and return its path."""
    path = benchmarks_path(settings) / f"{result.at:%Y-%m-%dT%H-%M-%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json(indent=1) + "\n", "utf-8")
    return path


def read_result(path: Path) -> BenchResult:
    """Return the result in a file. Raises ResultUnreadable."""
    try:
        result = BenchResult.model_validate_json(path.read_text("utf-8"))
    except OSError as error:
        raise ResultUnreadable(path, error.strerror or "not readable") from error
    except UnicodeDecodeError as error:
        raise ResultUnreadable(path, "it is not UTF-8") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ResultUnreadable(path, f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from error
    if result.format != FORMAT:
        raise ResultUnreadable(path, f"its format is {result.format}, this version reads {FORMAT}")
    return result


def invalid_runs(measurements: Sequence[Measurement]) -> list[str]:
    """Return a line for each measurement that does not count."""
    return [
        f"run {each.run}, {each.dataset} {each.mode} ({each.system}): {'; '.join(each.problems)}"
        for each in measurements
        if each.problems
    ]
