"""Fetches the locked jars: `python -m infra.jars.fetch`; `--lock` regenerates the lock from jars.in.

Reads: infra/jars/jars.lock, the user's cache, Maven Central.  Writes: the folder of jars, the cache.
Guarantee: every jar in the folder was hashed against the lock in this run.
After a crash: finished downloads are in the cache; the next run continues.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from include.ground.errors import HeadraceError
from include.ground.java import (
    FOLDERS,
    LOCK,
    OPTIONAL,
    Jar,
    JarMismatch,
    find_java,
    installed_jars,
    read_jar_list,
    sha256_of,
    verify_jar,
)
from infra.jars.ivy import download

JARS_IN = LOCK.with_name("jars.in")


@dataclass
class JarProgress:
    """Counts jars and prints one line for each; thread-safe."""

    total: int
    done: int = 0
    lock: Lock = field(default_factory=Lock)

    def report(self, how: str, jar: Jar, path: Path) -> None:
        """Print `[n/total] how folder artifact version size`."""
        with self.lock:
            self.done += 1
            _, artifact, version = jar.coordinate.split(":")
            size = f"{path.stat().st_size / 1e6:.1f} MB"
            print(
                f"  jars [{self.done:2}/{self.total}] {how:8} {jar.folder:6} {artifact} {version} ({size})", flush=True
            )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's cache of jars, shared by all clones; XDG_CACHE_HOME moves it."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "jars"


def cached_path(cache: Path, jar: Jar) -> Path:
    """Return the path of a jar in the cache, in a folder named by its hash."""
    return cache / jar.sha256 / jar.file_name


def put(source: Path, target: Path) -> None:
    """Copy a file atomically: the target is complete or absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-", delete=False) as part:
        try:
            with source.open("rb") as file:
                shutil.copyfileobj(file, part)
            part.close()
            Path(part.name).chmod(0o644)
            os.replace(part.name, target)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise


def accept(jar: Jar, path: Path, cache: Path) -> None:
    """Verify a download and copy it into the cache, or to `refused/` and raise JarMismatch."""
    found = sha256_of(path)
    if found != jar.sha256:
        refused = cache / "refused" / jar.file_name
        put(path, refused)
        raise JarMismatch(jar.coordinate, refused, jar.sha256, found)
    put(path, cached_path(cache, jar))


def place_from_disk(locked: Sequence[Jar], jars: Path, cache: Path) -> tuple[list[Jar], list[Jar]]:
    """Verify what is in the folder, fill it from the cache; return the jars copied and those in neither."""
    copied, absent = [], []
    for jar in locked:
        target, cached = jar.path_in(jars), cached_path(cache, jar)
        if target.is_file():
            verify_jar(jar, target)
        elif cached.is_file():
            verify_jar(jar, cached)
            put(cached, target)
            copied.append(jar)
        else:
            absent.append(jar)
    return copied, absent


def download_all(absent: Sequence[Jar], jars: Path, cache: Path, progress: JarProgress) -> None:
    """Download the jars, both folders at once; each is verified, cached and placed as it arrives."""
    java = find_java(os.environ).path
    cache.mkdir(parents=True, exist_ok=True)

    def arrived(jar: Jar, path: Path) -> None:
        accept(jar, path, cache)
        put(cached_path(cache, jar), jar.path_in(jars))
        progress.report("fetched", jar, path)

    with tempfile.TemporaryDirectory(dir=cache, prefix=".ivy-") as workspace:
        groups = {folder: [jar for jar in absent if jar.folder == folder] for folder in FOLDERS}
        with ThreadPoolExecutor(len(FOLDERS)) as pool:
            runs = [
                pool.submit(download, java, group, Path(workspace) / folder, arrived)
                for folder, group in groups.items()
                if group
            ]
        for run in runs:
            run.result()


def remove_unlisted(locked: Sequence[Jar], jars: Path) -> None:
    """Remove jars that are not locked from the folders of those that are: two versions on a class path conflict."""
    listed = {jar.path_in(jars) for jar in locked}
    for folder in {jar.folder for jar in locked}:
        for found in (jars / folder).glob("*.jar"):
            if found not in listed:
                print(f"  jars: removing {folder}/{found.name}, which the lock does not name")
                found.unlink()


def fetch(locked: Sequence[Jar], jars: Path, cache: Path) -> None:
    """Make the folders of the locked jars hold exactly these. Raises JarMismatch, JarsUnavailable or JavaMissing."""
    copied, absent = place_from_disk(locked, jars, cache)
    progress = JarProgress(len(copied) + len(absent))
    for jar in copied:
        progress.report("cached", jar, jar.path_in(jars))
    if absent:
        download_all(absent, jars, cache, progress)
    remove_unlisted(locked, jars)
    print(f"  jars: all {len(locked)} are present with the locked sha256")


def relock(cache: Path) -> None:
    """Download the jars of jars.in and write jars.lock. JarMismatch: a locked coordinate has other content."""
    known = (
        {(jar.folder, jar.coordinate): jar.sha256 for jar in read_jar_list(LOCK, hashed=True)} if LOCK.is_file() else {}
    )
    listed = read_jar_list(JARS_IN, hashed=False)
    lines: dict[Jar, str] = {}
    progress = JarProgress(len(listed))

    def arrived(jar: Jar, path: Path) -> None:
        found = replace(jar, sha256=sha256_of(path))
        before = known.get((jar.folder, jar.coordinate), found.sha256)
        accept(replace(jar, sha256=before), path, cache)
        lines[jar] = f"{jar.folder} {jar.coordinate} {found.sha256}\n"
        progress.report("hashed", jar, path)

    java = find_java(os.environ).path
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".ivy-") as workspace:
        for folder in FOLDERS:
            download(java, [jar for jar in listed if jar.folder == folder], Path(workspace) / folder, arrived)
    LOCK.write_text("".join(lines[jar] for jar in listed))


def folder_of_settings() -> Path:
    """Return the folder that HEADRACE_JARS names; an image, which has no settings yet, names it with `--into`."""
    from include.ground.settings import load_settings

    return load_settings().jars


def main() -> None:
    """Entry point of `python -m infra.jars.fetch`."""
    parser = argparse.ArgumentParser(description="Fetch and verify the jars of Spark and of the broker.")
    parser.add_argument("--lock", action="store_true", help="regenerate jars.lock from jars.in")
    parser.add_argument("--also", choices=OPTIONAL, help="also the jars that only s3a://, a benchmark or a demo needs")
    parser.add_argument("--into", type=Path, help="folder of the jars [default: HEADRACE_JARS]")
    chosen = parser.parse_args()
    try:
        cache = cache_folder(os.environ)
        if chosen.lock:
            relock(cache)
        locked = installed_jars(also=chosen.also)
        fetch(locked, chosen.into or folder_of_settings(), cache)
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")


if __name__ == "__main__":
    main()
