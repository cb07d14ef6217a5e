"""One broker for all recovery tests, and one dataset per test."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery_site import Site, close_broker, open_broker
from stored_site import create_bucket, endpoint_of, running_store, store_variables, stored_settings

from include.ground.java import LOCK, read_jar_list
from include.ground.settings import CLONE, Settings
from infra.jars.fetch import cache_folder, fetch


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


@pytest.fixture(scope="module")
def store() -> Iterator[subprocess.Popen[bytes]]:
    """A store with a bucket for tables, and the jars by which Spark reaches it."""
    locked = [each for each in read_jar_list(LOCK, hashed=True) if each.folder == "s3a"]
    fetch(locked, CLONE / ".jars", cache_folder(os.environ))
    with running_store() as process:
        create_bucket(endpoint_of(process), "tables")
        yield process


@pytest.fixture
def stored(site: Site, store: subprocess.Popen[bytes], tmp_path: Path) -> Site:
    """A site whose tables lie in a store."""
    own = {"state": site.settings.state, "datasets": site.settings.datasets}
    site.settings = stored_settings(tmp_path, endpoint_of(store), "tables", "s3a", **own)
    site.backend, site.variables = "spark", store_variables(site.settings)
    return site
