"""Caches the Java classes and static methods that PySpark looks up.

py4j looks up the class and the method in the JVM at each call of a function of Spark. The JVM looks for a name
without its package in every jar of the class path, for every imported package. Building the queries of a
run takes thousands of these look-ups.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JVMView

# The names by which PySpark builds columns and queries.
LOOKED_UP = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "functions",
    "PythonUtils",
    "PythonSQLUtils",
)


class RememberedClass(JavaClass):  # type: ignore[misc]
    """A Java class that looks up each of its static methods in the JVM once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def remember_lookups(jvm: JVMView) -> None:
    """Make the view of a JVM remember the classes that PySpark uses most; repeating it changes nothing."""
    for name in LOOKED_UP:
        found = getattr(jvm, name)
        if isinstance(found, JavaClass) and not isinstance(found, RememberedClass):
            setattr(jvm, name, RememberedClass(found._fqn, found._gateway_client))
