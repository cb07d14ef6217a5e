"""Java classes for tasks, compiled by Janino, which Spark has for its own code, and the columns that they compute."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import DataType


def java_function(spark: SparkSession, function: Any, returned: DataType, *arguments: Column) -> Column:
    """Return the column of what a Java function (`UDF2` for two columns) returns; no session has a name for it."""
    kind = spark._jsparkSession.parseDataType(returned.json())
    # By reflection: py4j takes `udf(Object, DataType)`, which Spark refuses.
    names = (f"api.java.UDF{len(arguments)}", "types.DataType")
    types = [_class(spark, f"org.apache.spark.sql.{name}") for name in names]
    jvm: Any = spark._jvm
    context, java = spark.sparkContext, jvm.java
    functions = _class(spark, "org.apache.spark.sql.functions")
    method = functions.getMethod("udf", _array(context, java.lang.Class, types))
    defined = method.invoke(None, _array(context, java.lang.Object, [function, kind]))
    return Column(defined.apply(_to_seq(spark.sparkContext, [each._jc for each in arguments])))


def _class(spark: SparkSession, name: str) -> Any:
    java: Any = spark._jvm
    return java.org.apache.spark.util.Utils.classForName(name, True, False)


def _array(context: SparkContext, kind: Any, values: Sequence[Any]) -> Any:
    gateway: Any = context._gateway
    array = gateway.new_array(kind, len(values))
    for number, value in enumerate(values):
        array[number] = value
    return array


PACKAGE = "headrace"


def new_instance(spark: SparkSession, *sources: Path) -> Any:
    """Return a new object of the class that the first source is named after; it uses the classes of the others."""
    return _loaded(spark.sparkContext, *sources).newInstance()


@lru_cache(maxsize=8)
def shared_instance(context: SparkContext, *sources: Path) -> Any:
    """Return the one object of a class without state, as `new_instance` makes it."""
    return _loaded(context, *sources).newInstance()


@lru_cache(maxsize=8)
def _loaded(context: SparkContext, *sources: Path) -> Any:
    """Return the class; tasks find it in a jar from now on. A context has many sessions: one for each micro-batch."""
    java: Any = context._jvm
    jar = _compiled(context, *sources)
    context._jsc.sc().addJar(str(jar))
    urls = _array(context, java.java.net.URL, [_url(context, jar)])
    loader = java.java.net.URLClassLoader(urls, java.org.apache.spark.util.Utils.getSparkClassLoader())
    return loader.loadClass(f"{PACKAGE}.{sources[0].stem}")


@lru_cache(maxsize=8)
def give_to_driver(context: SparkContext, source: Path) -> None:
    """Have Spark's own code in the driver find the class by its name, in any of the process's sessions."""
    java: Any = context._jvm
    java.java.lang.Thread.currentThread().getContextClassLoader().addURL(_url(context, _compiled(context, source)))


def _url(context: SparkContext, jar: Path) -> Any:
    java: Any = context._jvm
    return java.java.io.File(str(jar)).toURI().toURL()


def _compiled(context: SparkContext, *sources: Path) -> Path:
    java: Any = context._jvm
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    folder = Path(context.getConf().get("spark.local.dir", gettempdir()))
    jar = folder / f"{sources[0].stem}-{digest[:16]}.jar"
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as classes:
        janino = java.org.codehaus.janino
        known = janino.ClassLoaderIClassLoader(java.org.apache.spark.util.Utils.getSparkClassLoader())
        compiler = janino.Compiler(
            java.org.codehaus.commons.compiler.util.resource.ResourceFinder.EMPTY_RESOURCE_FINDER, known
        )
        compiler.setSourceCharset(java.java.nio.charset.StandardCharsets.UTF_8)
        compiler.setDestinationDirectory(java.java.io.File(classes), False)
        compiler.compile(_array(context, java.java.io.File, [java.java.io.File(str(source)) for source in sources]))
        _write_jar(jar, Path(classes))
    return jar


def _write_jar(jar: Path, classes: Path) -> None:
    new = jar.with_name(uuid4().hex)
    with zipfile.ZipFile(new, "w") as opened:
        for file in classes.rglob("*.class"):
            opened.write(file, file.relative_to(classes))
    new.replace(jar)
