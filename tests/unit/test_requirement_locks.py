"""The locks of Python packages: one version of a package in all groups, the pins that matter, hashes, no addresses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
# wheels.lock lists files, not requirements: test_locks.py.
LOCKS = sorted(set(REQUIREMENTS.glob("*.lock")) - {REQUIREMENTS / "wheels.lock"})
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^ ;]+)", re.MULTILINE)


def pins(lock: Path) -> dict[str, str]:
    return dict(PIN.findall(lock.read_text()))


def test_every_group_has_a_lock() -> None:
    assert {lock.stem for lock in LOCKS} >= {"runtime", "dev", "quality", "airflow", "build"}


# Each is installed into an environment of its own.
SEPARATE = ("flink", "uv")


def test_package_has_one_version_in_all_groups() -> None:
    versions: dict[str, dict[str, str]] = defaultdict(dict)
    for lock in (lock for lock in LOCKS if lock.stem not in SEPARATE):
        for package, version in pins(lock).items():
            versions[package][lock.stem] = version
    assert {package: by for package, by in versions.items() if len(set(by.values())) > 1} == {}


@pytest.mark.parametrize(
    ("group", "package", "version"),
    [
        ("runtime", "pyspark", r"4\.2\.0"),
        ("runtime", "delta-spark", r"4\.4\.\d+"),
        ("runtime", "pandas", r"2\.\d+\.\d+"),
        ("runtime", "confluent-kafka", r"2\.16\.\d+"),
        ("airflow", "apache-airflow", r"3\.3\.\d+"),
        ("quality", "great-expectations", r"1\.24\.\d+"),
    ],
)
def test_important_versions_are_pinned(group: str, package: str, version: str) -> None:
    assert re.fullmatch(version, pins(REQUIREMENTS / f"{group}.lock")[package])


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_package_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links", text)
    entries = re.split(r"\n(?=[^\s])", text.strip())
    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_great_expectations_does_not_install_spark() -> None:
    """Its `spark` extra pins an older pyspark."""
    assert "pyspark" not in pins(REQUIREMENTS / "quality.lock")


@pytest.mark.parametrize(("version", "is_taken"), [("the locked one", True), ("0.0.1", False), ("", False)])
def test_uv_of_another_version_on_the_path_is_not_used(tmp_path: Path, version: str, is_taken: bool) -> None:
    """A clone that has fetched uv already; on PATH is a program of the same name that prints a version."""
    for folder in ("requirements", "infra"):
        (tmp_path / folder).mkdir()
    shutil.copy(REQUIREMENTS / "uv.lock", tmp_path / "requirements")
    shutil.copy(REQUIREMENTS.parent / "infra" / "uv.sh", tmp_path / "infra")
    locked = pins(REQUIREMENTS / "uv.lock")["uv"]
    for place, printed in ((".cache/uv/bin", locked), ("bin", locked if is_taken else version)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "uv").write_text(f"#!/bin/sh\necho uv {printed}\n")
        (tmp_path / place / "uv").chmod(0o755)
    script = 'touch ".cache/uv/$(cksum <requirements/uv.lock | tr " " -)"; . infra/uv.sh; find_uv >&2; echo "$UV"'
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / ("bin" if is_taken else ".cache/uv/bin") / "uv"), done.stderr
