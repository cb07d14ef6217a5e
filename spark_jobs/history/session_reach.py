"""The reach of a slice in a table of sessions: by keys the span of time whose sessions its rows may change.

Reads: the published sessions of the touched keys. Writes: the reach, into the plan's folder.
Guarantee: sessions out of reach neither change nor are read, so a key with a long history costs what lies near.
Without a reach all sessions of the touched keys are recomputed: where a session of silver continues outside of it,
and for a table that waits for its sessions to close and does not know the open ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.declare.event_times import after, before
from include.declare.gold import EVERY_RUN
from include.declare.windows import Session
from include.ground.sql_quoting import same_sql
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.gold_files import GoldTable, grains_in, touched_files
from spark_jobs.layers.row_provenance import rows_in_grains, rows_of_other_grains
from spark_jobs.layers.session_gold import FROM, UNTIL, adjacent_to_reach, in_reach, reach_of
from spark_jobs.tables.data_files import DataFile, bounds_of
from spark_jobs.tables.duckdb_session import DuckSession, parquet_files, read_folder, rows_in_folder, write_folder

ReadSilver = Callable[[Sequence[DataFile]], DataFrame]


@dataclass(frozen=True)
class SessionReach:
    """The reach of a slice, in `folder`: the first and the last moment by the keys of a table of sessions."""

    target: GoldTable
    session: Session
    folder: Path

    @property
    def spans(self) -> DataFrame:
        """The reach as a frame."""
        return read_folder(self.target.spark, self.folder, self._schema)

    @property
    def _schema(self) -> StructType:
        schema = self.target.table.spec.schema
        time = schema[self.session.start].dataType
        keys = [schema[key] for key in self.target.gold.keys]
        return StructType([*keys, StructField(FROM, time), StructField(UNTIL, time)])

    def silver_files(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Return the files of silver that may have rows in the reach, or at most a gap before or after it."""
        column, gap = self.session.column, self.session.gap
        bounds = [each for path in parquet_files(self.folder) for each in bounds_of(path, (FROM, UNTIL))]
        # Without a bound there is no row with a time.
        known = [(low[FROM], high[UNTIL]) for low, high in bounds if FROM in low]
        spans = [(before(first, gap), after(last, gap)) for first, last in known]  # type: ignore[arg-type]
        return [file for file in files if any(file.overlaps(column, *span) for span in spans)]

    def rows(self, silver: DataFrame) -> DataFrame:
        """Return the rows of silver in the reach."""
        column = self.session.column
        return in_reach(self.target.gold.keys, silver, (column, column), self.spans, others=False)

    def is_crossed(self, silver: DataFrame) -> bool:
        """Whether a session of silver continues outside of the reach: gold has none, or a part of it."""
        keys, place = self.target.gold.keys, self.folder / "adjacent"
        counted = silver.where(self.target.gold.row_condition)
        write_folder(adjacent_to_reach(self.session, keys, counted, self.spans).select(*keys).limit(1), place)
        return bool(rows_in_folder(place))

    def divided(self, rows: DataFrame, grains: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the rows of a table that may change, and the rows of the keys `grains` that are out of reach."""
        keys, times, reach = self.target.gold.keys, (self.session.start, self.session.end), self.spans
        touched = rows_in_grains(rows, F.broadcast(grains), keys)
        near = in_reach(keys, touched, times, reach, others=False)
        kept = in_reach(keys, touched, times, reach, others=True)
        return rows_of_other_grains(rows, F.broadcast(grains), keys).unionByName(near), kept

    def condition(self, duck: DuckSession) -> str:
        """Return DuckDB's condition of the rows of the view `published` in the view `reach`, which it creates."""
        duck.view_folder("reach", self.folder, self._schema)
        same = same_sql(self.target.gold.keys, "published", "reach")
        begin = f'published."{self.session.start}" >= reach.{FROM}'
        return " and ".join([same, begin, f'published."{self.session.end}" <= reach.{UNTIL}'])


def planned_reach(target: GoldTable, folder: PlanFolder) -> SessionReach | None:
    """Return the reach that a plan has in a table; None when all rows of its grains are recomputed."""
    session, place = reached_session(target), folder.rows("reach", target.table.spec.name)
    return SessionReach(target, session, place) if session is not None and parquet_files(place) else None


def reached_session(target: GoldTable) -> Session | None:
    """Return the sessions of a table in which slices have a reach; None for any other table."""
    return target.gold.session if target.gold.refresh == EVERY_RUN else None


def plan_reach(target: GoldTable, folder: PlanFolder, silver: DataFrame, grains: Path) -> None:
    """Write the reach of rows of silver, whose keys are in the folder `grains`, if the table has one."""
    session = reached_session(target)
    if session is not None:
        at = F.col(session.column)
        spans = silver.where(target.gold.row_condition).select(*target.gold.keys, at.alias(FROM), at.alias(UNTIL))
        _written(target, session, spans, grains, folder.rows("reach", target.table.spec.name))


def current_reach(target: GoldTable, folder: PlanFolder, place: Path, grains: DataFrame) -> SessionReach | None:
    """Return the reach of a plan in the `grains` of the folder `place`, by the sessions as they are now.

    None when the plan has none. Other keys do not count: only sessions of these are replaced.
    """
    planned = planned_reach(target, folder)
    if planned is None:
        return None
    spans = rows_in_grains(planned.spans, grains, target.gold.keys)
    return _written(target, planned.session, spans, place, folder.staging("reach") / target.table.spec.name)


def _written(target: GoldTable, session: Session, spans: DataFrame, grains: Path, place: Path) -> SessionReach:
    files = touched_files(target, grains_in(target.gold, parquet_files(grains)))
    write_folder(reach_of(session, target.gold.keys, spans, target.table.read(target.spark, files)), place)
    return SessionReach(target, session, place)


def silver_to_read(
    reach: SessionReach | None, files: Sequence[DataFile], read: ReadSilver
) -> tuple[DataFrame, SessionReach | None]:
    """Return the rows of silver from which grains are recomputed, and their reach, which is removed if crossed."""
    if reach is not None:
        near = read(reach.silver_files(files))
        if not reach.is_crossed(near):
            return reach.rows(near), reach
        shutil.rmtree(reach.folder)
    return read(files), None
