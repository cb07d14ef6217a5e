"""Where Spark computes: settings of a cluster, what its executors are given, and what happens when it is not there."""

from __future__ import annotations

import socket
import subprocess
import sys
from getpass import getuser
from pathlib import Path

import pytest

from include.ground.errors import Transient
from include.ground.ports import HadoopUnknown, MasterUnreachable, master_addresses, require_master
from include.ground.settings import InvalidSetting, Settings
from include.observe.doctor import Verdict, check_spark_master
from spark_jobs.backends import spark_session
from spark_jobs.backends.spark_session import GUARDED, code_archive, master_options, require_executor, spark_master

MASTER = "spark://127.0.0.1:7077"
KUBERNETES = "k8s://https://cluster.example:6443"
TOO_MANY = {"spark.cores.max": "2", "spark.executor.cores": "3"}


@pytest.mark.parametrize(
    "master", ["", MASTER, "spark://one:7077,two.site:7078", "yarn", "k8s://https://api.site:6443", "k8s://host:443"]
)
def test_masters_of_clusters_are_accepted(master: str) -> None:
    assert Settings(spark_master=master).spark_master == master


@pytest.mark.parametrize(
    "master", ["local[4]", "local", "local-cluster[2,1,1024]", "host:7077", "spark://host", "Yarn"]
)
def test_other_masters_are_refused_with_what_is_allowed(master: str) -> None:
    with pytest.raises(ValueError, match=r"must be spark://host:port.*empty is local\[HEADRACE_DRIVER_CORES\]"):
        Settings(spark_master=master)


def test_executor_with_more_cores_than_the_driver_may_take_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="no executor would start"):
        Settings(spark_master=MASTER, spark_conf=TOO_MANY)
    assert Settings(spark_conf=TOO_MANY).executor_cores == 3, "without a cluster it means nothing"


def test_files_of_other_hosts_are_not_promised_to_survive_a_power_cut() -> None:
    with pytest.raises(InvalidSetting, match="others write the files") as refused:
        Settings(spark_master=MASTER, durability="power")
    assert refused.value.key == "HEADRACE_DURABILITY"


def test_backend_of_the_drivers_process_is_refused_on_a_cluster() -> None:
    with pytest.raises(InvalidSetting, match="HEADRACE_SPARK_MASTER names a cluster: unset one of them") as refused:
        Settings(spark_master=MASTER, backend="local")
    assert refused.value.key == "HEADRACE_BACKEND"


def test_local_session_listens_on_the_loopback_address_alone() -> None:
    settings = Settings(driver_cores=3, spark_conf={"spark.driver.host": "runner.site"})
    assert spark_master(settings) == "local[3]"
    assert master_options(settings, [], "") == {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def test_executors_get_the_jars_the_time_zone_and_a_share_of_the_cluster() -> None:
    sizes = {"spark.cores.max": "8", "spark.executor.cores": "2", "spark.executor.memory": "3g"}
    settings = Settings(spark_master=MASTER, spark_conf={**sizes, "spark.driver.host": "runner.site"})
    options = master_options(settings, [Path("/jars/a.jar"), Path("/jars/b.jar")], "-Duser.timezone=UTC")
    assert spark_master(settings) == MASTER
    assert options["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (options["spark.executorEnv.TZ"], options["spark.executor.extraJavaOptions"]) == (
        "UTC",
        "-Duser.timezone=UTC",
    )
    assert [options[f"spark.{name}"] for name in ("cores.max", "executor.cores", "executor.instances")] == [
        *("8", "2", "4"),
    ]
    assert options["spark.executor.memory"] == "3g"
    assert options["spark.driver.host"] == "runner.site"
    assert "spark.driver.bindAddress" not in options, "Spark's own default is the driver's host"


def test_master_that_does_not_answer_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(Settings(spark_master=f"spark://127.0.0.1:1,127.0.0.1:{port}"))
    master = f"spark://127.0.0.1:{port}"
    with pytest.raises(MasterUnreachable, match=f"{master} does not answer .*nothing was read"):
        require_master(Settings(spark_master=master))
    (finding,) = check_spark_master(Settings(spark_master=master))
    assert (finding.verdict, "does not answer" in finding.found) == (Verdict.FAIL, True)


def test_doctor_warns_of_a_master_that_it_cannot_try() -> None:
    (finding,) = check_spark_master(Settings(spark_master=KUBERNETES))
    assert (finding.verdict, finding.found) == (Verdict.WARN, f"{KUBERNETES} was not tried")


def configure(folder: Path, file: str, **properties: str) -> None:
    named = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items())
    (folder / file).write_text(f"<configuration>{named}</configuration>", "utf-8")


@pytest.mark.parametrize(
    ("properties", "addresses"),
    [
        ({"yarn.resourcemanager.address": "one:8050", "yarn.resourcemanager.admin.address": "one:1"}, ["one:8050"]),
        ({"yarn.resourcemanager.hostname": "one"}, ["one:8032"]),
        ({f"yarn.resourcemanager.hostname.rm{n}": f"h{n}" for n in (1, 2)}, ["h1:8032", "h2:8032"]),
    ],
)
def test_resource_managers_of_yarn_are_those_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], addresses: list[str]
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    configure(tmp_path, "yarn-site.xml", **properties)
    assert master_addresses("yarn") == addresses


def test_session_on_yarn_has_its_files_in_the_cluster_and_its_tables_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    configure(tmp_path, "core-site.xml", **{"fs.defaultFS": "hdfs://names:9000/"})
    options = master_options(Settings(spark_master="yarn"), [], "")
    assert options["spark.yarn.stagingDir"] == f"hdfs://names:9000/user/{getuser()}"
    assert GUARDED["spark.hadoop.fs.defaultFS"] == "file:///"
    chosen = Settings(spark_master="yarn", spark_conf={"spark.yarn.stagingDir": "hdfs://names/elsewhere"})
    assert master_options(chosen, [], "")["spark.yarn.stagingDir"] == "hdfs://names/elsewhere"


def test_what_the_configuration_of_hadoop_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(spark_master="yarn")
    with pytest.raises(HadoopUnknown, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; nothing was started"):
        require_master(settings)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(HadoopUnknown, match=r"yarn-site.xml cannot be read \(.*No such file"):
        require_master(settings)
    configure(tmp_path, "yarn-site.xml")
    with pytest.raises(HadoopUnknown, match="has neither yarn.resourcemanager.address nor"):
        require_master(settings)
    (finding,) = check_spark_master(settings)
    assert (finding.verdict, "HADOOP_CONF_DIR" in finding.remedy) == (Verdict.FAIL, True)
    configure(tmp_path, "yarn-site.xml", **{"yarn.resourcemanager.address": "127.0.0.1:1"})
    with pytest.raises(MasterUnreachable, match="the Spark master yarn does not answer .127.0.0.1:1: "):
        require_master(settings)
    configure(tmp_path, "core-site.xml")
    with pytest.raises(HadoopUnknown, match=r"does not name the cluster's file system, fs.defaultFS"):
        master_options(settings, [], "")


def test_doctor_says_nothing_of_a_master_that_is_not_set() -> None:
    assert check_spark_master(Settings()) == []


class SessionWithoutExecutors:
    """A session whose only block manager is the driver's."""

    stopped = False

    def __getattr__(self, name: str) -> SessionWithoutExecutors:
        return self

    def __call__(self) -> SessionWithoutExecutors:
        return self

    def size(self) -> int:
        return 1

    def stop(self) -> None:
        self.stopped = True


def test_session_without_executors_ends_instead_of_waiting_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "EXECUTOR_SECONDS", 0.2)
    session = SessionWithoutExecutors()
    with pytest.raises(Transient, match="has given no executor of 1 cores and 1g") as refused:
        require_executor(Settings(spark_master=MASTER), session)  # type: ignore[arg-type]
    assert refused.value.code == "no-executors"
    assert session.stopped


def test_archive_of_the_code_is_what_executors_import(tmp_path: Path) -> None:
    archive = code_archive(tmp_path)
    written = archive.stat().st_mtime_ns
    assert (code_archive(tmp_path), archive.stat().st_mtime_ns) == (archive, written)
    assert list(tmp_path.iterdir()) == [archive]
    program = "from include.declare import windows; print(windows.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert found.stdout.startswith(str(archive))
