"""One platform for each file of stack tests: broker, runner, a stream of real flights, Airflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psutil import STATUS_ZOMBIE, Process
from site_of_stack import Stack

from include.ground.settings import Settings
from include.run.airflow_parts import PARTS


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Runner and Airflow run, no stream is requested yet; the state folder's path has a space on purpose."""
    ground = tmp_path_factory.mktemp("stack ground")
    place = Stack(Settings(state=ground / "state", files=ground / "files"))
    parts: list[Process] = []
    try:
        answer = place.output_of("up", "--airflow", "--no-streams")
        assert "password" in answer
        parts = place.session()
        assert len(parts) > len(PARTS)
        yield place
    finally:
        parts += place.session()
        place.command("down")
        left = [process for process in parts if process.is_running() and process.status() != STATUS_ZOMBIE]
        for process in left:
            process.kill()
    assert left == [], "down left processes of Airflow behind"
