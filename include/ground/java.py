"""The Java that JVMs run on, and their jars: the committed lock, and whether the folder matches it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from include.ground.errors import Terminal

OLDEST_JAVA = 17
INSTALL_JAVA = "make setup brings one; or install Java 17, 21 or 25, or set JAVA_HOME to one"


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
    """Return the Java that Spark uses too. Raises JavaMissing when there is none, or it is too old."""
    path = java_path(environ)
    version = java_version(path)
    java = Java(path, major_version(version), version)
    if java.major < OLDEST_JAVA:
        raise JavaMissing(str(path), f"version {version} is too old, {OLDEST_JAVA} or newer is needed")
    return java


def java_path(environ: Mapping[str, str]) -> Path:
    """Return the launcher of JAVA_HOME, else of the package that set-up installs on a machine without Java, else on
    PATH. A JAVA_HOME without one is an error, as it is for Spark.
    """
    home = environ.get("JAVA_HOME") or packaged_home()
    if home:
        launcher = Path(home) / "bin" / "java"
        if not launcher.is_file():
            raise JavaMissing(f"JAVA_HOME={home}", "JAVA_HOME holds no bin/java")
        return launcher
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise JavaMissing("PATH", "not found")
    return Path(found)


def packaged_home() -> str:
    """Return the home of the Java that set-up brought (infra/setup.sh), "" without one."""
    home = Path(sys.prefix) / "java"
    return str(home) if home.is_dir() else ""


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


FOLDERS = ("spark", "s3a", "broker", "flink", "connect", "hadoop")
OPTIONAL = ("s3a", "flink", "connect", "hadoop")
"""Folders that set-up leaves out: their jars are for tables at s3a://, or for a benchmark, a demo or a test only."""
# Without the settings: an image fetches the jars in a layer that only their lock and these modules change.
LOCK = Path(__file__).resolve().parents[2] / "infra" / "jars" / "jars.lock"


@dataclass(frozen=True)
class Jar:
    """One jar: the folder it belongs to (of FOLDERS), `group:artifact:version`, sha256 in hex."""

    folder: str
    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        """`artifact-version.jar`."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    def path_in(self, jars: Path) -> Path:
        return jars / self.folder / self.file_name


class JarMismatch(Terminal):
    """A jar's content differs from the lock; `expected` and `found` are sha256 in hex."""

    def __init__(self, coordinate: str, path: Path, expected: str, found: str) -> None:
        super().__init__(
            f"jar {coordinate} has the wrong hash and is not used\n"
            f"  expected {expected}\n  found    {found}\n  at       {path}",
            f'find out what changed it; then rm "{path}" && make setup   (a new version: make jars-lock)',
        )
        self.coordinate, self.expected, self.found = coordinate, expected, found


def read_jar_list(path: Path, *, hashed: bool) -> list[Jar]:
    """Parse a jar list; with `hashed`, lines end in a sha256. Raises Terminal (`jar-lock-unreadable`)."""
    jars = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if not is_jar_line(words, hashed):
            what = f"{path}, line {number}: {line!r} is not `folder group:artifact:version [sha256]`; no jar was used"
            raise Terminal(what, code="jar-lock-unreadable", line=number)
        jars.append(Jar(words[0], words[1], words[2] if hashed else ""))
    return jars


def installed_jars(also: str | None = None) -> list[Jar]:
    """Return the locked jars that set-up installs, and those of a folder that it leaves out.

    Raises Terminal (`jar-lock-unreadable`).
    """
    left_out = {*OPTIONAL} - {also}
    return [jar for jar in read_jar_list(LOCK, hashed=True) if jar.folder not in left_out]


def is_jar_line(words: Sequence[str], hashed: bool) -> bool:
    """Return whether the words of a line are a folder, a coordinate and, when `hashed`, a sha256."""
    if len(words) != (3 if hashed else 2) or words[0] not in FOLDERS or words[1].count(":") != 2:
        return False
    return not hashed or (len(words[2]) == 64 and set(words[2]) <= set("0123456789abcdef"))


def sha256_of(path: Path) -> str:
    """Return the file's sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_jar(jar: Jar, path: Path) -> None:
    """Raise JarMismatch unless the file at `path` has the jar's hash."""
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarMismatch(jar.coordinate, path, jar.sha256, found)


def require_jars(jars: Path, folder: str, locked: Iterable[Jar]) -> None:
    """Raise Terminal (`jar-missing`) unless every locked jar of the folder lies below `jars`; hashes none."""
    missing = [jar.coordinate for jar in locked if jar.folder == folder and not jar.path_in(jars).is_file()]
    if missing:
        what = f"{len(missing)} of the {folder} jars are missing, first {missing[0]}"
        raise Terminal(what, "make setup", code="jar-missing", missing=missing)
