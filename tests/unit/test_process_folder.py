"""Folders of one process: whoever lives keeps its own, whatever its pid is in another container."""

from __future__ import annotations

from pathlib import Path

from include.ground.durable_files import LOCK, hold
from spark_jobs.backends.local.prepared_query import ScratchFolder


def test_folder_of_a_process_with_an_unknown_pid_is_kept_while_its_lock_is_held(tmp_path: Path) -> None:
    queries = tmp_path / "_queries"
    elsewhere, dead = queries / "4194399-ab", queries / "1-cd"
    for folder in (elsewhere, dead):
        folder.mkdir(parents=True)
    hold(elsewhere.with_suffix(LOCK))
    own = ScratchFolder(queries).path
    assert (own.is_dir(), elsewhere.is_dir(), dead.is_dir()) == (True, True, False)
