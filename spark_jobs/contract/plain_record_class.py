"""The Java class that reads plain records: compiled by Janino, which Spark has for its generated code, given to tasks.

So the Java that runs Spark needs no compiler, and executors of a cluster get the class as they get a jar.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import DataType

SOURCE = Path(__file__).with_name("PlainRecord.java")
CLASS = "headrace.PlainRecord"


def new_plain_record(spark: SparkSession) -> Any:
    """Return a new function of that class, to which the fields of a record are to be added."""
    return _loaded(spark, spark.sparkContext.applicationId).newInstance()


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


@lru_cache(maxsize=1)
def _loaded(spark: SparkSession, application: str) -> Any:
    """Return the class; tasks of the application find it in a jar from now on."""
    java: Any = spark._jvm
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.org.apache.spark.util.Utils.getSparkClassLoader())
    source = SOURCE.read_text("utf-8")
    compiler.cook(source)
    folder = Path(spark.sparkContext.getConf().get("spark.local.dir", "."))
    jar = folder / f"plain-record-{sha256(source.encode()).hexdigest()[:16]}.jar"
    _write_jar(jar, dict(compiler.getBytecodes()))
    spark._jsc.sc().addJar(str(jar))
    return compiler.getClassLoader().loadClass(CLASS)


def _write_jar(jar: Path, classes: dict[str, bytes]) -> None:
    jar.parent.mkdir(parents=True, exist_ok=True)
    new = jar.with_name(uuid4().hex)
    with zipfile.ZipFile(new, "w") as opened:
        for name, content in classes.items():
            opened.writestr(f"{name.replace('.', '/')}.class", bytes(content))
    new.replace(jar)
