"""Java classes of this project: compiled by Janino, which Spark has for its generated code, and given to its tasks.

So the Java that runs Spark needs no compiler, and executors of a cluster get a class as they get a jar.
"""

from __future__ import annotations

import zipfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

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
