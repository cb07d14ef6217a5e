"""The functions that declarations may use are those that Spark has."""

from __future__ import annotations

import re

import sqlglot
from pyspark.sql import SparkSession
from sqlglot import exp

from include.declare.sql_checks import other_spark_functions

ARGUMENTS = ("a", "a, b", "a, b, c", "")


def is_anonymous(name: str) -> bool:
    """Whether sqlglot parses some call of the function as one that it has no class for."""
    for arguments in ARGUMENTS:
        try:
            tree = sqlglot.parse_one(f"select {name}({arguments})", dialect="spark")
        except (sqlglot.ParseError, IndexError, ValueError):
            continue
        if tree.find(exp.Anonymous):
            return True
    return False


def test_every_function_of_spark_can_be_declared(spark: SparkSession) -> None:
    names = {row.function.lower() for row in spark.sql("show system functions").collect()}
    # Operators are listed too, and functions that are tables, which no declaration may use.
    tables = ("table_changes", "python_worker_logs")
    named = {name for name in names if re.fullmatch("[a-z][a-z0-9_]*", name) and not name.startswith(tables)}
    assert len(named) > 400
    assert sorted(name for name in named if is_anonymous(name) and name not in other_spark_functions()) == []
