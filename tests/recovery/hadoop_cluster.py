"""HDFS and YARN as real processes on free ports, always ended by their ids together with the containers."""

from __future__ import annotations

import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from recovery_site import wait_until
from standalone_cluster import SPARK_HOME, ZONE

from include.ground.java import LOCK, find_java, read_jar_list
from include.ground.ports import free_ports
from include.ground.settings import CLONE
from infra.jars.fetch import cache_folder, fetch

PROGRAM = Path(__file__).with_name("MiniHadoop.java")
SPARKS_OWN = ("hadoop-client-*", "slf4j-api-*", "log4j-*", "jcl-over-slf4j-*")
"""Jars of the pyspark wheel that the servers need besides."""
EXECUTOR, APPLICATION_MASTER = "YarnCoarseGrainedExecutorBackend", "spark.deploy.yarn.ExecutorLauncher"
STARTED_WITHIN = 180.0


@dataclass
class Hadoop:
    """A file system and a resource manager below `folder`, which is also the configuration of their clients."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = field(default_factory=lambda: free_ports(1)[0])

    def start_files(self) -> None:
        """Start HDFS, also again with its files."""
        self._start("dfs", self.port, "core-site.xml")

    def start_nodes(self, count: int) -> None:
        """Start YARN with as many node managers; HDFS must run."""
        self._start("yarn", count, "yarn-site.xml")

    def kill_files(self) -> None:
        """Kill HDFS, name node and data node, with SIGKILL."""
        process = self.processes.pop("dfs")
        process.kill()
        process.wait(30)

    def web_address(self) -> str:
        """Return where the name node answers HTTP: host:port."""
        tree = ElementTree.parse(self.folder / "core-site.xml")
        values = {each.findtext("name"): each.findtext("value") for each in tree.iter("property")}
        return str(values["dfs.namenode.http-address"])

    def settings(self, cores: int = 2) -> dict[str, str]:
        """Return the variables of a stream on this cluster."""
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "700m",
            "spark.cores.max": str(cores),
            "spark.yarn.am.memory": "256m",
            # Otherwise each start uploads Spark, 400 MB.
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        }
        return {
            "HEADRACE_SPARK_MASTER": "yarn",
            "HEADRACE_SPARK_CONF": json.dumps(conf),
            "HADOOP_CONF_DIR": str(self.folder),
        }

    def containers(self, program: str) -> list[psutil.Process]:
        """Return the Java processes of containers that run a program."""
        found = []
        for child in psutil.Process(self.processes["yarn"].pid).children(recursive=True):
            with suppress(psutil.Error):
                if child.name() == "java" and program in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def end(self) -> None:
        """Kill every process, containers first known by their parents."""
        for process in self.processes.values():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
            process.kill()
            process.wait(30)

    def _start(self, servers: str, number: int, configuration: str) -> None:
        log, ready = self.folder / f"{servers}.log", self.folder / configuration
        ready.unlink(missing_ok=True)
        java = find_java(os.environ).path
        jars = [*sorted((CLONE / ".jars" / "hadoop").glob("*.jar"))]
        jars += [jar for pattern in SPARKS_OWN for jar in sorted((SPARK_HOME / "jars").glob(f"{pattern}.jar"))]
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "PYTHON"))}
        with log.open("ab") as output:
            self.processes[servers] = subprocess.Popen(
                [
                    *(str(java), "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-cp", os.pathsep.join(map(str, jars)), str(PROGRAM), servers, str(self.folder), str(number)),
                ],
                env={**plain, "TZ": ZONE, "JAVA_HOME": str(java.resolve().parents[1])},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def is_ready() -> bool:
            assert self.processes[servers].poll() is None, log.read_text("utf-8", "replace")[-3000:]
            return ready.exists()

        wait_until(is_ready, f"{servers} answers", within=STARTED_WITHIN)


@contextmanager
def hadoop_cluster(folder: Path, nodes: int) -> Iterator[Hadoop]:
    """Yield HDFS and YARN with as many node managers, without these HDFS alone; end them afterwards."""
    locked = [jar for jar in read_jar_list(LOCK, hashed=True) if jar.folder == "hadoop"]
    fetch(locked, CLONE / ".jars", cache_folder(os.environ))
    cluster = Hadoop(folder)
    try:
        cluster.start_files()
        if nodes:
            cluster.start_nodes(nodes)
        yield cluster
    finally:
        cluster.end()
