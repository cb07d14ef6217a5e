"""The doctor's checks, each with its facts as arguments."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli import up as doctor_command
from include.ground.java import Jar, Java, JavaMissing
from include.ground.settings import InvalidSetting, Settings
from include.observe.doctor import (
    GB,
    Mount,
    Verdict,
    check_disk,
    check_file_operations,
    check_heaps,
    check_jars,
    check_java,
    check_ledger_place,
    check_memory,
    check_mount,
    check_packages,
    check_port,
    check_pyspark_python,
    check_python,
    check_second_spark,
    check_settings,
    check_writable,
    failed,
    passed,
)
from include.state.process_states import ProcessState, ProcessStatus

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL
STOPPED = ProcessStatus("broker", None, ProcessState.STOPPED)
MOUNTS = [Mount("/", "ext4"), Mount("/mnt", "nfs4"), Mount("/mnt/fast", "xfs"), Mount("/dev/shm", "tmpfs")]


def no_java(_environ: object) -> Java:
    raise JavaMissing("PATH", "not found")


def test_missing_java_fails() -> None:
    found = check_java(lambda _: Java(Path("/j/bin/java"), 17, "17.0.1"), {"JAVA_HOME": "/j"})
    assert (found.verdict, "JAVA_HOME" in found.found) == (OK, True)
    assert check_java(no_java, {}).verdict is FAIL
    assert "make setup brings one" in check_java(no_java, {}).remedy


@pytest.mark.parametrize(("free", "verdict"), [(1.9, FAIL), (2, WARN), (4.9, WARN), (5, OK)])
def test_small_disk_warns_then_fails(free: float, verdict: Verdict) -> None:
    assert check_disk(int(free * GB), Path("/s")).verdict is verdict


@pytest.mark.parametrize(("available", "verdict"), [(3.9, WARN), (4, OK)])
def test_small_memory_warns(available: float, verdict: Verdict) -> None:
    assert check_memory(int(available * GB)).verdict is verdict


@pytest.mark.parametrize(("driver", "verdict"), [("2g", OK), ("7g", OK), ("8g", FAIL), ("900g", FAIL)])
def test_heaps_larger_than_the_machine_fail(driver: str, verdict: Verdict) -> None:
    found = check_heaps(Settings(driver_memory=driver), 8 * (1 << 30))
    assert (found.verdict, driver in found.found) == (verdict, True)


@pytest.mark.parametrize(
    ("place", "verdict", "kind"),
    [
        ("/home/x", OK, "ext4"),
        ("/mnt/slow", WARN, "nfs4"),
        ("/mnt/fast/x", OK, "xfs"),
        ("/mnt/fasting", WARN, "nfs4"),
        ("/dev/shm/x", WARN, "tmpfs"),
    ],
)
def test_file_system_is_that_of_the_longest_mount(place: str, verdict: Verdict, kind: str) -> None:
    found = check_mount(Path(place), MOUNTS)
    assert found.verdict is verdict
    assert found.found.startswith(kind)


def test_container_layer_warns() -> None:
    assert check_mount(Path("/x"), [Mount("/", "overlay")]).verdict is WARN
    assert check_mount(Path("/x"), []).verdict is WARN


def test_sqlite_ledger_on_a_network_file_system_warns() -> None:
    on_nfs = Settings(state=Path("/mnt/state"))
    assert [each.verdict for each in check_ledger_place(on_nfs, MOUNTS)] == [WARN]
    in_postgres = on_nfs.model_copy(update={"ledger_url": "postgresql://x/y"})
    for settings in (in_postgres, Settings(state=Path("/mnt/fast/state"))):
        assert check_ledger_place(settings, MOUNTS) == []


def test_file_system_without_what_commits_need_fails(tmp_path: Path) -> None:
    def no_links(_new: Path, _name: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    def replacing(new: Path, name: Path) -> None:
        shutil.copyfile(new, name)

    assert check_file_operations(tmp_path).verdict is OK
    for link, why in ((no_links, "no hard links"), (replacing, "a hard link replaces a file")):
        found = check_file_operations(tmp_path, link)
        assert (found.verdict, why in found.found) == (FAIL, True), found
    absent = check_file_operations(tmp_path / "absent")
    assert (absent.verdict, "writable" in absent.remedy, "network" in absent.remedy) == (FAIL, True, False)
    assert list(tmp_path.iterdir()) == []


def test_port_taken_by_another_process_fails() -> None:
    assert check_port(0, STOPPED, lambda _: False, str).verdict is OK
    assert check_port(9092, STOPPED, lambda _: True, str).verdict is OK
    taken = check_port(9092, STOPPED, lambda _: False, lambda _: "pid 7 (java)")
    assert taken.verdict is FAIL
    assert "pid 7 (java)" in taken.found
    ours = ProcessStatus("broker", 7, ProcessState.RUNNING, "127.0.0.1:9092")
    assert check_port(9092, ours, lambda _: False, str).verdict is OK


def test_unwritable_state_folder_fails(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "new" / "state").verdict is OK
    (tmp_path / "file").touch()
    assert check_writable(tmp_path / "file").verdict is FAIL


@pytest.mark.parametrize(
    ("version", "prefix", "verdict"),
    [
        ((3, 11, 9), "/c/.venv", OK),
        ((3, 13, 0), "/c/.venv", OK),
        ((3, 14, 0), "/c/.venv", FAIL),
        ((3, 11, 9), "/usr", WARN),
    ],
)
def test_wrong_python_fails_and_another_environment_warns(
    version: tuple[int, int, int], prefix: str, verdict: Verdict
) -> None:
    assert check_python(version, prefix, Path("/c")).verdict is verdict


@pytest.mark.parametrize(
    ("installed", "verdict"),
    [
        ({"pyspark": "4.2.0"}, OK),
        ({"pyspark": "4.2.0", "pyspark-client": "4.2.0"}, OK),
        ({"pyspark": "4.2.0", "pyspark-client": "4.1.0"}, FAIL),
        ({"pyspark": "4.1.0"}, FAIL),
        ({}, FAIL),
    ],
)
def test_missing_or_different_pyspark_fails(installed: dict[str, str], verdict: Verdict) -> None:
    assert check_packages(installed.get).verdict is verdict


def test_missing_or_changed_jar_fails(tmp_path: Path) -> None:
    jar = Jar("spark", "org.example:one:1.0", hashlib.sha256(b"one").hexdigest())
    assert check_jars(tmp_path, [jar]).verdict is FAIL
    (tmp_path / "spark").mkdir()
    jar.path_in(tmp_path).write_bytes(b"one")
    assert check_jars(tmp_path, [jar]).verdict is OK
    jar.path_in(tmp_path).write_bytes(b"two")
    assert check_jars(tmp_path, [jar]).verdict is FAIL


def test_different_pyspark_python_fails() -> None:
    assert check_pyspark_python({}, sys.executable).verdict is OK
    assert check_pyspark_python({"PYSPARK_PYTHON": sys.executable}, sys.executable).verdict is OK
    other = check_pyspark_python({"PYSPARK_PYTHON": "/bin/sh", "PATH": "/bin"}, sys.executable)
    assert other.verdict is FAIL
    assert other.remedy == "unset PYSPARK_PYTHON"


def test_second_spark_installation_is_found(tmp_path: Path) -> None:
    ours, scripts, other = tmp_path / "pyspark", tmp_path / "bin", tmp_path / "other"
    for folder in (ours, scripts, other):
        folder.mkdir()
        (folder / "spark-submit").touch(mode=0o755)
    (other / "pyspark").mkdir()
    (other / "pyspark" / "__init__.py").touch()

    def verdict(**environ: object) -> Verdict:
        return check_second_spark({key: str(value) for key, value in environ.items()}, ours, scripts).verdict

    assert verdict(PATH="/nowhere") is OK
    assert verdict(PATH=scripts) is OK
    assert verdict(PATH="/nowhere", SPARK_HOME=ours) is OK
    assert verdict(PATH="/nowhere", SPARK_HOME=other) is FAIL
    assert verdict(PATH="/nowhere", PYTHONPATH=f"/x:{other}") is FAIL
    assert verdict(PATH="/nowhere", PYTHONPATH=tmp_path) is OK
    assert verdict(PATH="/nowhere", SPARK_CONF_DIR=other) is WARN
    assert verdict(PATH=other) is WARN


def test_refused_setting_fails() -> None:
    def refuse() -> Settings:
        raise InvalidSetting("HEADRACE_NOPE", "is no setting of Headrace")

    finding, settings = check_settings(refuse)
    assert (finding.verdict, settings) == (FAIL, None)
    assert "HEADRACE_NOPE" in finding.found
    assert check_settings(Settings)[0].verdict is OK


@pytest.mark.parametrize(
    ("findings", "code"), [([passed("a", "b")], 0), ([passed("a", "b"), failed("c", "[d]", "e")], 1)]
)
def test_exit_code_is_that_of_the_worst_check(
    monkeypatch: pytest.MonkeyPatch, findings: list[object], code: int
) -> None:
    from include.cli.main import app

    monkeypatch.setattr(doctor_command, "run_checks", lambda: findings)
    table, listing = CliRunner().invoke(app, ["doctor"]), CliRunner().invoke(app, ["doctor", "--json"])
    assert (table.exit_code, listing.exit_code) == (code, code)
    printed = json.loads(listing.stdout)
    assert printed["ok"] is (code == 0)
    assert len(printed["checks"]) == len(findings)
