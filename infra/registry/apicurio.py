"""A schema registry on this machine: Apicurio, with Confluent's REST API and its schemas in a folder.

It downloads the archive that `apicurio.lock` names, verifies it, and keeps it in the cache of the jars.

Usage: python -m infra.registry.apicurio FOLDER [--port P]
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from include.ground.errors import HeadraceError, Transient
from include.ground.java import JarMismatch, find_java, sha256_of
from include.ground.ports import LOOPBACK, free_ports
from include.ground.processes import NoProgress, Waiting, cpu_steps, file_size
from include.ground.schema_registry import SchemaRegistry
from infra.jars.fetch import cache_folder, put
from infra.jars.ivy import download_archive

LOCK = Path(__file__).with_name("apicurio.lock")
PATH = "/apis/ccompat/v7"
DEFAULT_LEVEL = "BACKWARD"


class RegistryNotStarted(Transient):
    """The registry ended, or makes no progress."""

    def __init__(self, log: Path) -> None:
        end = log.read_text("utf-8", "replace")[-1500:] if log.exists() else ""
        super().__init__(f"the registry did not start\n{end}", f"look into {log}")


@dataclass(frozen=True)
class RunningRegistry:
    """A registry's process and the URL of its API."""

    process: subprocess.Popen[bytes]
    url: str

    def settings(self) -> dict[str, str]:
        """Return the variable with which Headrace uses it."""
        return {"HEADRACE_SCHEMA_REGISTRY_URL": self.url}


def fetch_registry() -> Path:
    """Return the folder of the unpacked archive, which is downloaded if it is not there. Raises JarMismatch."""
    coordinate, expected = LOCK.read_text("utf-8").split()
    cache = cache_folder(os.environ)
    folder = cache / expected / "registry"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".registry-") as workspace:
        archive = download_archive(find_java(os.environ).path, coordinate, Path(workspace) / "ivy")
        if (found := sha256_of(archive)) != expected:
            refused = cache / "refused" / archive.name
            put(archive, refused)
            raise JarMismatch(coordinate, refused, expected, found)
        unpacked = Path(workspace) / "unpacked"
        with tarfile.open(archive) as content:
            content.extractall(unpacked, filter="data")
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, folder)
    return folder


def start_registry(folder: Path, port: int = 0) -> RunningRegistry:
    """Start a registry with its schemas and log in `folder`; return when it answers. Raises RegistryNotStarted."""
    folder.mkdir(parents=True, exist_ok=True)
    (program,) = fetch_registry().rglob("*-runner.jar")
    port = port or free_ports(1)[0]
    # Without the delay of H2 an answered registration survives a kill.
    database = f"jdbc:h2:file:{(folder / 'schemas').resolve()};WRITE_DELAY=0"
    options = {
        **{"quarkus.http.host": LOOPBACK, "quarkus.http.port": str(port)},
        **{"apicurio.storage.kind": "sql", "apicurio.storage.sql.kind": "h2", "apicurio.datasource.url": database},
    }
    java = [str(find_java(os.environ).path), "-Xmx256m", "-XX:+UseSerialGC"]
    command = [*java, *(f"-D{name}={value}" for name, value in options.items()), "-jar", str(program)]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    running = RunningRegistry(process, f"http://{LOOPBACK}:{port}{PATH}")
    _await_answer(running, folder / "log.txt")
    return running


def _await_answer(running: RunningRegistry, log: Path) -> None:
    registry = SchemaRegistry(running.url)

    def answers() -> bool:
        if running.process.poll() is not None:
            raise RegistryNotStarted(log)
        with suppress(HeadraceError):
            registry.set_compatibility(DEFAULT_LEVEL)
            return True
        return False

    try:
        Waiting("the schema registry", lambda: (file_size(log), cpu_steps([running.process.pid]))).holds(answers, 0.2)
    except NoProgress:
        running.process.kill()
        raise RegistryNotStarted(log) from None


def main() -> None:
    """Entry point of `python -m infra.registry.apicurio`."""
    parser = argparse.ArgumentParser(description="Start a schema registry on this machine.")
    parser.add_argument("folder", type=Path, help="folder for its schemas and its log")
    parser.add_argument("--port", type=int, default=0, help="port [default: a free one]")
    chosen = parser.parse_args()
    # A `kill` ends the registry too: without a handler its JVM would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        running = start_registry(chosen.folder, chosen.port)
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
    for name, value in running.settings().items():
        print(f"export {name}={value}", flush=True)
    try:
        running.process.wait()
    except KeyboardInterrupt:
        print("the registry ends", flush=True)
    finally:
        running.process.terminate()
        running.process.wait(20)


if __name__ == "__main__":
    main()
