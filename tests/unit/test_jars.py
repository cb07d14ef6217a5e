"""Jars: the lock, its verification, and the refusal of a wrong hash; no network, no JVM."""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from error_codes import raises

from include.ground.errors import Terminal
from include.ground.java import LOCK, Jar, JarMismatch, read_jar_list, require_jars, verify_jar
from infra.jars import fetch as fetching
from infra.jars.fetch import JARS_IN, cache_folder, cached_path, fetch
from infra.jars.ivy import SETTINGS, JarsUnavailable, arrived_coordinate, ivy_file, ivy_jar

CONTENT = b"not really a jar"


def jar(artifact: str = "one", content: bytes = CONTENT, folder: str = "spark") -> Jar:
    return Jar(folder, f"org.example:{artifact}:1.0", hashlib.sha256(content).hexdigest())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Stands in for the download: coordinate → content that arrives; the others do not."""
    contents: dict[str, bytes] = {}

    def download(_java: Path, jars: Sequence[Jar], workspace: Path, arrived: Callable[[Jar, Path], None]) -> None:
        workspace.mkdir(parents=True)
        for wanted in jars:
            if wanted.coordinate not in contents:
                raise JarsUnavailable([wanted.coordinate], "not found")
            path = workspace / wanted.file_name
            path.write_bytes(contents[wanted.coordinate])
            arrived(wanted, path)

    monkeypatch.setattr(fetching, "download", download)
    return contents


def test_committed_lock_covers_exactly_the_coordinates_of_jars_in() -> None:
    locked = [(jar.folder, jar.coordinate) for jar in read_jar_list(LOCK, hashed=True)]
    wanted = [(jar.folder, jar.coordinate) for jar in read_jar_list(JARS_IN, hashed=False)]
    assert locked == wanted
    assert len(set(locked)) == len(locked)


def test_locked_versions_are_compatible() -> None:
    spark = {jar.coordinate for jar in read_jar_list(LOCK, hashed=True) if jar.folder == "spark"}
    broker = {jar.coordinate for jar in read_jar_list(LOCK, hashed=True) if jar.folder == "broker"}
    assert "io.delta:delta-spark_4.2_2.13:4.4.0" in spark
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in spark
    assert any(one.startswith("org.apache.kafka:kafka_2.13:4.") for one in broker)
    assert any("slf4j-impl" in one for one in broker), "without a binding the broker's log is silent"
    assert not any("kafka_2.13" in one for one in spark), "broker jars on Spark's class path break it"


def test_jar_files_contain_no_address() -> None:
    for path in (LOCK, JARS_IN, SETTINGS):
        assert "://" not in path.read_text()


@pytest.mark.parametrize(
    "line",
    [
        "spark org.example:one:1.0",
        "spark org.example:one:1.0 abc",
        "spark org.example:one " + "0" * 64,
        "hive org.example:one:1.0 " + "0" * 64,
        "spark org.example:one:1.0 " + "G" * 64,
        "spark org.example:one:1.0 " + "0" * 64 + " more",
    ],
)
def test_invalid_line_of_the_lock_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "jars.lock"
    path.write_text(f"# comment\n\n{line}\n")
    with raises(Terminal, "jar-lock-unreadable") as refused:
        read_jar_list(path, hashed=True)
    assert refused.value.facts == {"line": 3}


def test_wrong_hash_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = tmp_path / "one-1.0.jar"
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(JarMismatch) as refused:
        verify_jar(jar(), path)
    assert refused.value.expected == hashlib.sha256(CONTENT).hexdigest()
    assert refused.value.found == hashlib.sha256(CONTENT + b"!").hexdigest()
    assert all(part in refused.value.what for part in (refused.value.expected, refused.value.found, "org.example:one"))


def test_missing_jars_name_the_command(tmp_path: Path) -> None:
    with raises(Terminal, "jar-missing") as refused:
        require_jars(tmp_path, "broker", [jar("one"), jar("two", folder="broker")])
    assert refused.value.facts["missing"] == ["org.example:two:1.0"]
    assert refused.value.remedy == "make setup"


def test_jar_is_fetched_once_then_copied_from_the_cache(tmp_path: Path, registry: dict[str, bytes]) -> None:
    cache, locked = tmp_path / "cache", [jar("one"), jar("two", folder="broker")]
    registry.update({one.coordinate: CONTENT for one in locked})
    fetch(locked, tmp_path / "first clone", cache)
    registry.clear()
    fetch(locked, tmp_path / "second clone", cache)
    for clone in ("first clone", "second clone"):
        assert [one.path_in(tmp_path / clone).read_bytes() for one in locked] == [CONTENT, CONTENT]


def test_wrong_download_is_neither_cached_nor_placed(tmp_path: Path, registry: dict[str, bytes]) -> None:
    registry[jar().coordinate] = b"something else"
    with pytest.raises(JarMismatch):
        fetch([jar()], tmp_path / "jars", tmp_path / "cache")
    assert not jar().path_in(tmp_path / "jars").exists()
    assert not cached_path(tmp_path / "cache", jar()).exists()


def test_cached_jars_are_verified_every_time(tmp_path: Path) -> None:
    cached = cached_path(tmp_path / "cache", jar())
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"changed")
    with pytest.raises(JarMismatch, match="changed|wrong hash"):
        fetch([jar()], tmp_path / "jars", tmp_path / "cache")
    assert not jar().path_in(tmp_path / "jars").exists()


def test_jar_folder_is_verified_every_time(tmp_path: Path) -> None:
    placed = jar().path_in(tmp_path / "jars")
    placed.parent.mkdir(parents=True)
    placed.write_bytes(b"changed")
    with pytest.raises(JarMismatch):
        fetch([jar()], tmp_path / "jars", tmp_path / "cache")
    assert placed.read_bytes() == b"changed", "a jar that does not match the lock is not removed"


def test_downloads_before_a_failure_stay_in_the_cache(tmp_path: Path, registry: dict[str, bytes]) -> None:
    registry[jar("one").coordinate] = CONTENT
    with pytest.raises(JarsUnavailable):
        fetch([jar("one"), jar("two")], tmp_path / "jars", tmp_path / "cache")
    assert cached_path(tmp_path / "cache", jar("one")).read_bytes() == CONTENT


def test_unlisted_jar_is_removed(tmp_path: Path, registry: dict[str, bytes]) -> None:
    registry[jar().coordinate] = CONTENT
    unlisted = tmp_path / "jars" / "spark" / "one-0.9.jar"
    unlisted.parent.mkdir(parents=True)
    unlisted.touch()
    fetch([jar()], tmp_path / "jars", tmp_path / "cache")
    assert sorted(path.name for path in unlisted.parent.iterdir()) == ["one-1.0.jar"]


def test_ivy_resolves_each_jar_separately() -> None:
    dependencies = ET.fromstring(ivy_file([jar("one"), jar("two")])).iter("dependency")
    assert [(one.get("name"), one.get("transitive")) for one in dependencies] == [("one", "false"), ("two", "false")]


def test_ivy_reports_each_downloaded_jar() -> None:
    line = "\t[SUCCESSFUL ] org.example#one_2.13;1.0!one_2.13.jar (12ms)"
    assert arrived_coordinate(line) == "org.example:one_2.13:1.0"
    assert arrived_coordinate("\tfound org.example#one;1.0 in public") == ""


def test_ivy_is_part_of_the_installed_pyspark() -> None:
    assert ivy_jar().is_file()


def test_cache_follows_xdg_cache_home(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "headrace" / "jars"
    assert cache_folder({}) == Path.home() / ".cache" / "headrace" / "jars"
