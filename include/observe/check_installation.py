"""Checks of the installation and the settings: Python, packages, jars, a second Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from include.ground.jar_lock import Jar, JarMismatch, verify_jar
from include.ground.settings import InvalidSetting, Settings
from include.observe.check_result import CheckResult, failed, passed, warning

PYTHON = (3, 11)
SPARK = "4.2.0"


def check_python(version: tuple[int, int, int], prefix: str, clone: Path) -> CheckResult:
    """Check that Python is 3.11 and of the clone's own environment."""
    found = f"{'.'.join(map(str, version))} in {prefix}"
    if version[:2] != PYTHON:
        return failed("python", found, "make setup   (with Python 3.11 on PATH)")
    if Path(prefix) != clone / ".venv":
        return warning("python", f"{found}, not the clone's own .venv", "use .venv/bin/headrace of this clone")
    return passed("python", found)


def check_packages(version_of: Callable[[str], str | None]) -> CheckResult:
    """Check that pyspark, and pyspark-client if installed, have the version for which the jars are built."""
    spark, client = version_of("pyspark"), version_of("pyspark-client")
    found = f"pyspark {spark or 'missing'}{f', pyspark-client {client}' if client else ''}"
    if spark != SPARK or client not in (None, spark):
        return failed("packages", f"{found}; {SPARK} is needed", "make setup")
    return passed("packages", found)


def check_jars(jars: Path, locked: Sequence[Jar]) -> CheckResult:
    """Check that every locked jar is present with the locked hash."""
    missing = [jar.coordinate for jar in locked if not jar.path_in(jars).is_file()]
    if missing:
        return failed("jars", f"{len(missing)} of {len(locked)} missing in {jars}, first {missing[0]}", "make setup")
    try:
        for jar in locked:
            verify_jar(jar, jar.path_in(jars))
    except JarMismatch as error:
        return failed("jars", error.what, error.remedy)
    return passed("jars", f"{len(locked)} with the locked sha256 in {jars}")


def check_pyspark_python(environ: Mapping[str, str], executable: str) -> CheckResult:
    """Check that Spark's Python workers run this Python: another one has other packages, or none."""
    chosen = environ.get("PYSPARK_PYTHON")
    if not chosen:
        return passed("PYSPARK_PYTHON", "not set: Spark takes this Python")
    path = shutil.which(chosen, path=environ.get("PATH"))
    # Not resolved: a virtual environment's Python is a link to its base Python.
    if path and os.path.abspath(path) == os.path.abspath(executable):
        return passed("PYSPARK_PYTHON", path)
    return failed("PYSPARK_PYTHON", f"{chosen}, not {executable}", "unset PYSPARK_PYTHON")


def check_second_spark(environ: Mapping[str, str], spark: Path, scripts: Path) -> CheckResult:
    """Check that no other Spark precedes ours; `spark` is our pyspark's folder, `scripts` our environment's bin."""
    name = "second Spark"
    home = environ.get("SPARK_HOME")
    if home and Path(home).resolve() != spark.resolve():
        return failed(name, f"SPARK_HOME={home}: its jars would be taken, not those of {spark}", "unset SPARK_HOME")
    shadowing = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if holds_pyspark(place)]
    if shadowing:
        return failed(name, f"PYTHONPATH leads to another pyspark: {shadowing[0]}", "unset PYTHONPATH")
    if environ.get("SPARK_CONF_DIR"):
        found = f"SPARK_CONF_DIR={environ['SPARK_CONF_DIR']}: its settings are added to ours"
        return warning(name, found, "unset SPARK_CONF_DIR")
    submit = shutil.which("spark-submit", path=environ.get("PATH"))
    if submit and Path(submit).parent.resolve() != scripts.resolve():
        return warning(name, f"{submit} is another Spark's", f"call {scripts}/spark-submit by its whole path")
    return passed(name, "none")


def holds_pyspark(place: str) -> bool:
    """Return whether a PYTHONPATH entry contains another pyspark."""
    return bool(place) and ((Path(place) / "pyspark" / "__init__.py").exists() or "pyspark" in Path(place).name)


def check_settings(load: Callable[[], Settings]) -> tuple[CheckResult, Settings | None]:
    """Check that the settings are valid; also return them, None when they are not."""
    try:
        settings = load()
    except InvalidSetting as error:
        return failed("settings", error.what, error.remedy), None
    return passed("settings", "valid"), settings
