"""DuckDB connections of the product: a memory limit, and a spill folder in the state folder that is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from include.paths import spill_path
from include.settings import CLONE, Settings

DEAD = 2**22 + 1
SPILLS = """
from os import getpid
from include.paths import spill_path
from include.reading.memory_database import memory_database, spill_folder
from include.settings import load_settings
database = memory_database("64MB")
database.execute("set threads = 1")
database.execute("create table t as select range as i, hash(range) as h from range(8_000_000)")
print(sum(path.stat().st_size for path in spill_path(load_settings(), getpid()).rglob("*") if path.is_file()))
"""


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """The environment of a process with the test's state folder."""
    return {**os.environ, "HEADRACE_STATE": str(settings.state), "HEADRACE_DATASETS": str(settings.datasets)}


def test_database_spills_into_the_state_folder_and_leaves_nothing(
    settings: Settings, environment: dict[str, str]
) -> None:
    left, alive = spill_path(settings, DEAD) / "ab12", spill_path(settings, os.getpid())
    for folder in (left, alive):
        folder.mkdir(parents=True)
    done = subprocess.run([sys.executable, "-c", SPILLS], cwd=CLONE, env=environment, capture_output=True, check=True)
    assert int(done.stdout) > 8_000_000
    assert list(Path(settings.state, "spill").iterdir()) == [alive]
