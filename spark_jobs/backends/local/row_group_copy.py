"""One Parquet file of several, by copying their row groups: costs reading and writing the bytes, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

PLAIN_INTEGERS = {(f"INT{bits}", f"Int(bitWidth={bits}, isSigned=true)") for bits in (32, 64)}


def have_same_columns(files: Sequence[Path]) -> bool:
    """Return whether the files have the same columns of the same types, as the parts of one file must."""
    first, *others = (_columns(file) for file in files)
    return all(first == other for other in others)


def _columns(file: Path) -> list[tuple[object, ...]]:
    """Return path, physical type and meaning of each column of a file.

    A signed integer of its type's width means the same without an annotation: DuckDB writes it, Arrow does not.
    """
    schema = pq.read_metadata(file).schema
    found = list[tuple[object, ...]]()
    for column in (schema.column(number) for number in range(len(schema))):
        means = str(column.logical_type)
        found.append(
            (
                column.path,
                column.physical_type,
                column.length,
                column.max_definition_level,
                column.max_repetition_level,
                "None" if (column.physical_type, means) in PLAIN_INTEGERS else means,
            )
        )
    return found


def copy_row_groups(spark: SparkSession, files: Sequence[Path], target: Path) -> None:
    """Write the row groups of the files, in order, into one new file. Raises py4j's error when one cannot be read."""
    java: Any = spark._jvm
    hadoop, path = java.org.apache.parquet.hadoop, java.org.apache.hadoop.fs.Path
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    # `appendFile` makes new options for each file, and parses Hadoop's XML files for them.
    options = java.org.apache.parquet.HadoopReadOptions.builder(configuration).build()

    def opened(file: Path) -> Any:
        return hadoop.ParquetFileReader.open(
            hadoop.util.HadoopInputFile.fromPath(path(str(file)), configuration), options
        )

    output = hadoop.util.HadoopOutputFile.fromPath(path(str(target)), configuration)
    sizes = (hadoop.ParquetWriter.DEFAULT_BLOCK_SIZE, hadoop.ParquetWriter.MAX_PADDING_SIZE_DEFAULT)
    with closing(opened(files[0])) as first:
        schema = first.getFileMetaData().getSchema()
    with closing(hadoop.ParquetFileWriter(output, schema, hadoop.ParquetFileWriter.Mode.CREATE, *sizes)) as writer:
        writer.start()
        for file in files:
            with closing(opened(file)) as reader:
                reader.appendTo(writer)
        writer.end(java.java.util.HashMap())
