"""Java classes for tasks, compiled by Janino, which Spark has for its own code, and the columns that they compute."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import DataType


def java_function(spark: SparkSession, function: Any, returned: DataType, argument: Column) -> Column:
    """Return the column of what a Java function (`UDF1`) returns for a column; no session has a name for it."""
    kind = spark._jsparkSession.parseDataType(returned.json())
    # By reflection: py4j takes `udf(Object, DataType)`, which Spark refuses.
    types = [_class(spark, f"org.apache.spark.sql.{name}") for name in ("api.java.UDF1", "types.DataType")]
    method = _class(spark, "org.apache.spark.sql.functions").getMethod("udf", _array(spark, "Class", types))
    defined = method.invoke(None, _array(spark, "Object", [function, kind]))
    return Column(defined.apply(_to_seq(spark.sparkContext, [argument._jc])))


def _class(spark: SparkSession, name: str) -> Any:
    java: Any = spark._jvm
    return java.org.apache.spark.util.Utils.classForName(name, True, False)


def _array(spark: SparkSession, kind: str, values: Sequence[Any]) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(getattr(gateway.jvm.java.lang, kind), len(values))
    for number, value in enumerate(values):
        array[number] = value
    return array


PACKAGE = "headrace"


def new_instance(spark: SparkSession, source: Path) -> Any:
    """Return a new object of the public class in a Java source, which is named as the file and takes no arguments."""
    return _loaded(spark.sparkContext, source).newInstance()


@lru_cache(maxsize=8)
def _loaded(context: SparkContext, source: Path) -> Any:
    """Return the class; tasks find it in a jar from now on. A context has many sessions: one for each micro-batch."""
    compiler, jar = _compiled(context, source)
    context._jsc.sc().addJar(str(jar))
    return compiler.getClassLoader().loadClass(f"{PACKAGE}.{source.stem}")


@lru_cache(maxsize=8)
def give_to_driver(context: SparkContext, source: Path) -> None:
    """Have Spark's own code in the driver find the class by its name, in any of the process's sessions."""
    java: Any = context._jvm
    _, jar = _compiled(context, source)
    java.java.lang.Thread.currentThread().getContextClassLoader().addURL(java.java.io.File(str(jar)).toURI().toURL())


def _compiled(context: SparkContext, source: Path) -> tuple[Any, Path]:
    java: Any = context._jvm
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.org.apache.spark.util.Utils.getSparkClassLoader())
    text = source.read_text("utf-8")
    compiler.cook(text)
    folder = Path(context.getConf().get("spark.local.dir", "."))
    jar = folder / f"{source.stem}-{sha256(text.encode()).hexdigest()[:16]}.jar"
    _write_jar(jar, dict(compiler.getBytecodes()))
    return compiler, jar


def _write_jar(jar: Path, classes: dict[str, bytes]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    new = jar.with_name(uuid4().hex)
    with zipfile.ZipFile(new, "w") as opened:
        for name, content in classes.items():
            opened.writestr(f"{name.replace('.', '/')}.class", bytes(content))
    new.replace(jar)
