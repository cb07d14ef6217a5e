"""One broker for all recovery tests, and one dataset per test."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from recovery_site import Site, close_broker, open_broker

from include.ground.settings import Settings


@pytest.fixture(scope="session")
def broker_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A state folder with a running broker; its path has a space on purpose."""
    root = tmp_path_factory.mktemp("recovery ground")
    (root / "datasets").mkdir()
    settings = Settings(state=root / "state", datasets=root / "datasets", driver_memory="1g")
    try:
        open_broker(settings)
        yield settings
    finally:
        close_broker(settings)


@pytest.fixture
def site(broker_settings: Settings, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A dataset named after the test."""
    # The end of a name has its parameters.
    name = re.sub(r"[^a-z0-9_]", "_", request.node.name.removeprefix("test_"))[-40:].strip("_")
    place = Site(broker_settings, name)
    place.prepare()
    yield place
    place.kill_all()
