"""Spark queries that are built and analysed once, and executed again and again over other files (layers/adr-0012).

A *slot* is a folder that such a query reads. Before each execution its files are exchanged, and Spark lists it again.
Building a query costs more than executing it for a few thousand rows.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.process_folder import new_process_folder


class ScratchFolder:
    """A folder below `parent` for the files of this process alone, made at first use, removed at exit."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @cached_property
    def path(self) -> Path:
        """The folder; those that processes left which are dead now are removed."""
        return new_process_folder(self._parent)


class Slot:
    """A folder of Parquet files with the columns of `schema`; `rows` is the frame of whatever files it has."""

    def __init__(self, spark: SparkSession, folder: Path, schema: StructType) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.rows = spark.read.schema(schema).parquet(str(folder))
        self._index: Any = self.rows._jdf.queryExecution().analyzed().relation().location()

    @contextmanager
    def exchanged(self) -> Iterator[Path]:
        """Empty the folder for the caller to write new files into."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        yield self.folder
        self._index.refresh()

    def put(self, files: Sequence[Path]) -> None:
        """Exchange the files for links to others, or for copies where the storage has no links."""
        with self.exchanged() as folder:
            for number, file in enumerate(files):
                link_or_copy(file, folder / f"{number:05}.parquet")


def link_or_copy(file: Path, to: Path) -> None:
    """Make a hard link to a file, or a copy on storage without links."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)
