"""A real standalone Spark cluster on free ports: a master and workers as processes, always ended by their ids."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark
from recovery_site import FAST_START_JVM, wait_until

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
EXECUTOR = "CoarseGrainedExecutorBackend"
# Far from UTC: what executors compute must not depend on a worker's zone.
ZONE = "America/New_York"


@dataclass
class Worker:
    """A worker with one core; its executors are its children."""

    process: subprocess.Popen[bytes]
    folder: Path

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if EXECUTOR in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def tasks_begun(self) -> int:
        """Return how many tasks the executors of this worker have begun."""
        return sum(log.read_text("utf-8", "replace").count("Running task") for log in self.folder.rglob("stderr"))


@dataclass
class Cluster:
    """A master and its workers, below `folder`."""

    folder: Path
    secret: str = ""
    master: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_master(self) -> None:
        """Start the master on a free port."""
        log = self.folder / "master.log"
        self._start(log, MASTER_CLASS, "--port", "0")
        wait_until(lambda: ADDRESS.search(log.read_text("utf-8", "replace")) is not None, "the master answers")
        found = ADDRESS.search(log.read_text("utf-8", "replace"))
        assert found is not None
        self.master = found[1]

    def add_worker(self) -> Worker:
        """Start a worker, and wait until the master knows it."""
        folder = self.folder / f"worker-{len(self.processes)}"
        folder.mkdir()
        log = folder / "worker.log"
        arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), self.master)
        process = self._start(log, WORKER_CLASS, *arguments)
        wait_until(lambda: "Successfully registered" in log.read_text("utf-8", "replace"), "the worker registers")
        return Worker(process, folder)

    def settings(self, cores: int = 2, *, with_secret: bool = True) -> dict[str, str]:
        """Return the variables of a stream on this cluster, with the secret if it has one."""
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "700m", "spark.cores.max": str(cores)}
        conf |= self.security() if self.secret and with_secret else {}
        return {"HEADRACE_SPARK_MASTER": self.master, "HEADRACE_SPARK_CONF": json.dumps(conf)}

    def security(self) -> dict[str, str]:
        """Return Spark's options of a cluster that only who has the secret may use."""
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.io.encryption.enabled": "true",
        }

    def end(self) -> None:
        """Kill every process of the cluster, executors first known by their parents."""
        for process in reversed(self.processes):
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait(30)

    def _start(self, log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "PYTHON"))}
        own = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC {FAST_START_JVM}",
            "SPARK_LOCAL_DIRS": str(log.parent / "local"),
            "TZ": ZONE,
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--webui-port", "0"]
        if self.secret:
            # A file: command lines and their options are readable for every user of the machine.
            file = self.folder / "spark.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in self.security().items()))
            arguments = ("--properties-file", str(file), *arguments)
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *arguments],
                env=plain | own,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


@contextmanager
def standalone_cluster(folder: Path, secret: str = "") -> Iterator[Cluster]:
    """Yield a cluster without workers; end it afterwards. With a secret it refuses who does not have it."""
    cluster = Cluster(folder, secret)
    try:
        cluster.start_master()
        yield cluster
    finally:
        cluster.end()
