"""A session of Spark's SQL over files and tables: executors read the rows, the driver gets counts and samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.declare.dataset import Dataset
from include.ground.record_coordinates import COORDINATES, RANK
from include.read.rejected_records import Position
from spark_jobs.backends.spark.decide import copies, duplicate_rows, refused_rows
from spark_jobs.backends.spark.figures import figures
from spark_jobs.layers.silver_tables import SilverTables
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.spark_files import read_files, read_folder, write_folder


class SparkSql:
    """A session of its own, with its views. A name in double quotes is a column, as in DuckDB."""

    first_reason = "reasons[0]"
    rules = "explode(array_distinct(reasons.rule))"
    numbers = "explode(sequence(1, {}))"
    # Spark compares no maps.
    with_map = "to_json({}, map('timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS', 'ignoreNullFields', 'false'))"

    def __init__(self, spark: SparkSession) -> None:
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")

    def view_files(self, name: str, files: Sequence[Path], schema: StructType) -> None:
        """Create a view of these files with the columns of `schema`; an empty one without files."""
        read_files(self._session, schema, files).createOrReplaceTempView(name)

    def view_folder(self, name: str, folder: Path, schema: StructType) -> None:
        """Create a view of a folder's files."""
        read_folder(self._session, folder, schema).createOrReplaceTempView(name)

    def view_table(self, name: str, table: Table, files: Sequence[DataFile]) -> None:
        """Create a view of some of a table's files."""
        table.read(self._session, files).createOrReplaceTempView(name)

    def view_places(self, name: str, places: Sequence[Position]) -> None:
        """Create a view with the columns `partition` and `offset`."""
        rows = self._session.createDataFrame(list(places), "partition int, offset long")
        rows.createOrReplaceTempView(name)

    def view_query(self, name: str, sql: str) -> None:
        """Create a view of a query."""
        self._session.sql(sql).createOrReplaceTempView(name)

    def view_candidates(self, name: str, writer: SilverTables, given: Sequence[Path]) -> None:
        """Create the view by a join of silver with the hashes of the rows' identities."""
        silver, identity = writer.silver, list(writer.dataset.pipeline.identity)
        marks = read_files(self._session, silver.spec.data_schema, given).select(F.xxhash64(*identity).alias("_mark"))
        rows = silver.read(self._session, silver.files()).withColumn("_mark", F.xxhash64(*identity))
        found = rows.join(marks.distinct(), "_mark", "left_semi")
        found.select(*dict.fromkeys([*identity, *RANK])).createOrReplaceTempView(name)

    def find_duplicates(self, dataset: Dataset, fresh: str, known: str) -> None:
        """Make the table by a window over each identity."""
        identity, session = list(dataset.pipeline.identity), self._session
        rows = session.sql(f"select * from {fresh}").select(*dict.fromkeys([*identity, *COORDINATES]))
        earlier = session.sql(f"select * from {known}").select(*dict.fromkeys([*identity, *RANK]))
        both = rows.withColumn("_fresh", F.lit(True)).unionByName(
            earlier.withColumn("_fresh", F.lit(False)), allowMissingColumns=True
        )
        copies(both, identity).localCheckpoint(eager=False).createOrReplaceTempView("duplicates")

    def view_rejected(self, name: str, dataset: Dataset) -> None:
        """Create the view."""
        invalid, duplicates = self._session.table("invalid"), self._session.table("duplicates")
        rows = refused_rows(dataset, invalid).unionByName(duplicate_rows(dataset, duplicates))
        rows.createOrReplaceTempView(name)

    def create_table(self, name: str, sql: str) -> None:
        """Create a view of a query whose rows executors keep."""
        self._session.sql(sql).localCheckpoint(eager=False).createOrReplaceTempView(name)

    def save(self, sql: str, folder: Path) -> None:
        """Write the rows of a query into a folder, replacing its content."""
        write_folder(self._session.sql(sql), folder)

    save_records = save

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query with a small result."""
        return [tuple(row) for row in figures(self._session.sql(sql))]

    def count(self, sql: str) -> int:
        """Return the row count of a query."""
        return int(self.rows(f"select count(*) from ({sql})")[0][0])
