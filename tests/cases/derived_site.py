"""Two small sources and a derived dataset over them, driven by hand, with builders of their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from held_lease import HeldLease
from pyspark.sql import SparkSession
from small_events import departed, observation
from small_release import Record, SmallRelease

from include.declare.derived_dataset import snapshot_derived
from include.ground.delta_log import commits
from include.ground.settings import Settings
from include.read.published_tables import pinned
from spark_jobs.stream.derived import DerivedRelease

NAME = "weather_delays"


@dataclass
class DerivedSite:
    """Two sources and a derived dataset over them, driven by hand."""

    spark: SparkSession
    settings: Settings
    flights: SmallRelease
    weather: SmallRelease
    derived: DerivedRelease

    def restart(self, backend: str | None = None) -> None:
        """Forget every handle, as a new process does; one with another backend if it is given."""
        if backend is not None:
            self.settings = self.settings.model_copy(update={"backend": backend})
        self.derived = opened(self.spark, self.settings, self.derived.derived.name)

    def unfenced(self) -> list[int]:
        """Return the versions of the derived tables whose rows were committed without the owner's transaction."""
        logs = [commits(each.target.table.spec.path) for each in self.derived.open_tables()]
        return [each.version for log in logs for each in log if (each.added or each.removed) and each.owner is None]

    def follow(self) -> int:
        """Execute runs until there is none; return how many."""
        count = 0
        while (run := self.derived.next_run()) is not None:
            self.derived.execute(run)
            count += 1
        return count

    def rows(self, table: str = NAME, order: Sequence[str] = ("hour", "origin")) -> list[dict[str, Any]]:
        """Return the published rows without provenance, sorted."""
        found = pinned(self.settings).read(f"gold.{table}").collect().sort(order)
        return found.select(c for c in found.columns if not c.startswith("_")).to_dicts()


def opened(spark: SparkSession, settings: Settings, name: str = NAME) -> DerivedRelease:
    """Return the release of a derived dataset's folder."""
    return DerivedRelease(settings, snapshot_derived(settings, name), spark, HeldLease())


def flight(number: int, hour: int, delay: int) -> Record:
    """Return the departure of a flight, scheduled so many hours after the first of March."""
    return departed(
        number, delay, f"2013-03-0{1 + hour // 24}T{hour % 24:02}:50:00Z", scheduled=scheduled(hour), origin="JFK"
    )


def scheduled(hour: int) -> str:
    """Return a time in an hour of March."""
    return f"2013-03-0{1 + hour // 24}T{hour % 24:02}:30:00Z"


def wind(hour: int, speed: float) -> Record:
    """Return an observation in an hour of March."""
    stamp = f"2013-03-0{1 + hour // 24}T{hour % 24:02}"
    return observation(stamp, wind_speed=str(speed), temp="40.5", visib="2.0" if hour % 2 else "10.0", precip="0.1")
