"""Find the Java that the project's JVMs run on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.ground.errors import Terminal

OLDEST_JAVA = 17
INSTALL_JAVA = "install a JDK 17 or newer (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"


class JavaMissing(Terminal):
    """No usable Java was found; `searched` is where."""

    def __init__(self, searched: str, why: str) -> None:
        super().__init__(f"Java: {why} ({searched}); no JVM was started", INSTALL_JAVA)
        self.searched = searched


@dataclass(frozen=True)
class Java:
    """A Java launcher: its path, major version and full version text."""

    path: Path
    major: int
    version: str


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the Java that Spark uses too: JAVA_HOME first, then PATH. Raises JavaMissing when none is new enough."""
    path = java_path(environ)
    version = java_version(path)
    java = Java(path, major_version(version), version)
    if java.major < OLDEST_JAVA:
        raise JavaMissing(str(path), f"version {version} is too old, {OLDEST_JAVA} or newer is needed")
    return java


def java_path(environ: Mapping[str, str]) -> Path:
    """Return the launcher's path. A JAVA_HOME without one is an error, as it is for Spark."""
    home = environ.get("JAVA_HOME")
    if home:
        launcher = Path(home) / "bin" / "java"
        if not launcher.is_file():
            raise JavaMissing(f"JAVA_HOME={home}", "JAVA_HOME holds no bin/java")
        return launcher
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaMissing("PATH", "not found")
    return Path(found)


def java_version(launcher: Path) -> str:
    """Return the version that `java -version` prints, such as `17.0.15`."""
    try:
        done = subprocess.run([launcher, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(str(launcher), f"does not run: {error}") from error
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    if match is None:
        raise JavaMissing(str(launcher), f"`-version` printed no version, exit code {done.returncode}")
    return match.group(1)


def major_version(version: str) -> int:
    """Return the major number of a version: 17 of `17.0.15`, 8 of `1.8.0_402`."""
    numbers = [int(part) for part in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
