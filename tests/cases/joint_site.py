"""A source, a derived dataset over it and one over that, with plans whose jobs and owners are this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from derived_site import opened
from held_lease import HeldLease
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease, small_release

from include.change import release as release_kind
from include.change import stages as build_parts
from include.change.plan_parameters import ReleaseParameters
from include.change.release import ReleasePlan
from include.change.stages import PlanReporter, run_plan
from include.declare.dataset import snapshot_dataset
from include.declare.derived_dataset import released_derived
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.plans.plan import PlanRecord, Stage
from include.read.publication import find_publication
from include.read.published_tables import pinned
from include.state.owner_requests import OwnerRequest, OwnerResponse, find_response, submit_request
from spark_jobs.jobs import request_job, shadow_job
from spark_jobs.stream import active_releases
from spark_jobs.stream.derived import DerivedRelease

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONTRACT = """apiVersion: v3.1.0
kind: DataContract
id: taps
name: taps
version: 1.0.0
status: active
description: {purpose: Taps.}
schema:
  - name: taps
    physicalType: topic
    logicalType: object
    properties:
      - {name: id, logicalType: string, required: true, unique: true, primaryKey: true}
      - {name: station, logicalType: string, required: true}
      - {name: at, logicalType: timestamp, required: true}
      - {name: n, logicalType: integer, required: true}
"""
PIPELINE = """topic: taps
partitions: 1
event_time: at
lateness: 2 days
identity: {columns: [id], horizon: 400 days}
gold:
  taps_last: {kind: latest, keys: [station], order_by: [at], columns: {last_at: at, n: n}}
"""
SILVER = '''"""Taps."""
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Return taps with a mark."""
    return accepted.COLUMNS
'''
HOURS = """sources: {taps: silver.taps}
gold:
  taps_hours:
    query: gold/taps_hours.sql
    grain: [hour, station]
    touched_by:
      taps: {hour: "date_trunc('hour', at)", station: station}
"""
WEEKS = """sources: {hours: gold.taps_hours}
gold:
  taps_weeks:
    query: gold/taps_weeks.sql
    grain: [week]
    touched_by:
      hours: {week: "date_trunc('week', hour)"}
"""
HUGE, BIG = """withColumn("huge", F.col("n") > 50)""", """withColumn("big", F.col("n") > 50)"""


@dataclass
class JointSite:
    """The folders, the tables and the owners; `kills` are datasets of which the next request ends this process."""

    spark: SparkSession
    settings: Settings
    kills: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=lambda: {"taps_hours", "taps_weeks"})

    def write(self, name: str, text: str) -> None:
        """Write a file of a dataset's folder."""
        path = self.settings.datasets / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def declare_taps(self, columns: str) -> None:
        """Declare the source; `columns`: the calls that add columns to silver."""
        self.write("taps/contract.yaml", CONTRACT)
        self.write("taps/pipeline.yaml", PIPELINE)
        self.write("taps/silver.py", SILVER.replace("COLUMNS", columns))

    def declare_hours(self, column: str, name: str = "marked") -> None:
        """Declare the first derived dataset, which counts the rows with a mark."""
        self.write("taps_hours/derived.yaml", HOURS)
        marked = f" count_if({column}) as {name}"
        query = f"select date_trunc('hour', at) as hour, station,\n{marked}\nfrom taps group by 1, 2\n"
        self.write("taps_hours/gold/taps_hours.sql", query)

    def declare_weeks(self, column: str = "marked") -> None:
        """Declare the second derived dataset, over the first."""
        self.write("taps_weeks/derived.yaml", WEEKS)
        query = f"select date_trunc('week', hour) as week, sum({column}) as marked from hours group by 1\n"
        self.write("taps_weeks/gold/taps_weeks.sql", query)

    def source(self) -> SmallRelease:
        """Return the folder's release of the source, with its snapshot."""
        return small_release(self.spark, self.settings, "taps", snapshot_dataset(self.settings, "taps").folder)

    def follow(self, *names: str) -> None:
        """Have the published releases of derived datasets follow their sources; those of the folders at first."""
        for name in names:
            release = self.derived(name)
            while (run := release.next_run()) is not None:
                release.execute(run)

    def derived(self, name: str) -> DerivedRelease:
        """Return the published release of a derived dataset, the folder's before the first publication."""
        published = find_publication(self.settings, name)
        if published is None:
            return opened(self.spark, self.settings, name)
        declared = released_derived(self.settings, name, published.release)
        return DerivedRelease(self.settings, declared, self.spark, HeldLease())

    def plan(self, dataset: str, *members: str) -> PlanRecord:
        """Plan the release of a folder, with those of members."""
        parameters = ReleaseParameters(members=members, threshold=1.0)
        return ReleasePlan().plan(self.settings, dataset, parameters, "ann", NOON)

    def run(self, record: PlanRecord, upto: Stage = Stage.APPLIED) -> PlanRecord:
        """Run the remaining stages of a plan; it is approved."""
        return run_plan(self.settings, record, PlanReporter(), lambda _: "ann", "ann", upto)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the published rows of a table without what the platform notes."""
        found = pinned(self.settings).read(table).collect()
        columns = sorted(name for name in found.columns if not name.startswith("_"))
        return found.select(columns).sort(columns).to_dicts()

    def job(
        self, _: Settings, __: str, dataset: str, job: Sequence[str], report: Any, again: str = ""
    ) -> Mapping[str, Any]:
        """Execute a build job in this process; return its last report."""
        module, *arguments = job
        found: dict[str, Any] = {}
        reported = lambda **facts: found.update(facts)  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shadow_job, "report", reported)
            try:
                assert module == "spark_jobs.jobs.shadow_job"
                shadow_job.build(self.settings, *arguments[:2], json.loads(arguments[2]), threading.Event())
            except Exception as error:  # noqa: BLE001
                return {"failed": getattr(error, "what", str(error)), "remedy": getattr(error, "remedy", "")}
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    def request(
        self, settings: Settings, dataset: str, request: OwnerRequest, *, is_kept: bool = False, again: str = ""
    ) -> OwnerResponse:
        """Submit a request and execute it, as the owner does."""
        submit_request(settings, dataset, request)
        if dataset in self.kills:
            self.kills.remove(dataset)
            raise KeyboardInterrupt
        request_job.execute_pending(settings, dataset)
        response = find_response(settings, dataset, request)
        assert response is not None
        if response.refused:
            raise Terminal(response.refused, response.remedy, code="request-refused")
        return response


def joint_site(spark: SparkSession, state: Path, patch: pytest.MonkeyPatch) -> JointSite:
    """Return a site in an empty state folder, whose jobs and owners are this process."""
    settings = Settings(state=state / "a state", datasets=state / "datasets")
    site = JointSite(spark, settings)
    lease = HeldLease()
    for module in (active_releases, shadow_job, request_job):
        patch.setattr(module, "take_lease", lambda *_: lease)
    for module in (shadow_job, request_job):
        patch.setattr(module, "open_session", lambda *_: spark)
    patch.setattr(request_job, "fence_earlier_owner", lambda *_: None)
    patch.setattr(build_parts, "run_job", site.job)
    patch.setattr(release_kind, "request_owner", site.request)
    patch.setattr("include.change.readers.observe_stream", lambda _, name: name in site.running)
    patch.setattr("include.change.readers.is_expected", lambda status: status)
    patch.setattr("spark_jobs.history.reader_analysis.PATIENCE", 0.0)
    return site


def tap(number: int, hour: int, n: int) -> Record:
    """Return a tap some hours after a Monday."""
    at = NOON + timedelta(days=4, hours=hour)
    value = {"id": f"t{number}", "station": "a", "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "n": n}
    return Record(json.dumps(value).encode())
