"""One platform for all stack tests: broker, runner, a stream of real flights, Airflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from site_of_stack import Stack

from include.settings import Settings


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Runner and Airflow are up, no stream is wanted yet; the state folder's path has a space on purpose."""
    place = Stack(Settings(state=tmp_path_factory.mktemp("stack ground") / "state"))
    try:
        said = place.said("up", "--airflow", "--no-streams")
        assert "password" in said
        yield place
    finally:
        place.command("down")
        for process in place.session():
            process.kill()
