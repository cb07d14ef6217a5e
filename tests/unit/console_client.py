"""A console over a small state folder, without a broker and without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from ledgered_stream import Stream
from small_warehouse import SmallWarehouse, bronze_row, rejected_row, silver_row

from include.ground.settings import Settings
from include.observe.ledger_writer import open_writer, project_dataset
from include.serve.console import console_app
from include.serve.log_in import add_user

USER, PASSWORD = "ann", "correct horse"
HOSTILE = '<script>alert("x")</script>'
CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@contextmanager
def console_client(settings: Settings, host: str = "127.0.0.1") -> Iterator[TestClient]:
    """A client of the console; its observer runs."""
    app: Any = console_app(settings, host)
    with TestClient(app, base_url="http://localhost", follow_redirects=False, raise_server_exceptions=True) as client:
        yield client


def published_state(settings: Settings) -> Stream:
    """Three runs of flights in the ledger, and published tables of sales with a hostile payload."""
    stream = Stream(settings)
    for batch in range(3):
        stream.run(batch, batch)
    project_dataset(open_writer(settings), settings, "flights")
    warehouse = SmallWarehouse(settings)
    warehouse.write("bronze", [bronze_row(0, b"{}"), bronze_row(1, HOSTILE.encode())])
    warehouse.write("silver", [silver_row(0, HOSTILE)])
    warehouse.write("rejected", [rejected_row(1, "invalid", "malformed")])
    warehouse.move(offsets={0: 2})
    return stream


def with_passwords(settings: Settings, folder: Path) -> Settings:
    """The settings with a password file that has one user."""
    path = folder / "passwords"
    add_user(path, USER, PASSWORD)
    return settings.model_copy(update={"console_passwords": path})


def logged_in(client: TestClient) -> str:
    """Log in; return the token that forms must have."""
    answer = client.post("/log-in", data={"user": USER, "password": PASSWORD, "to": "/plans"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/plans")
    found = CSRF.search(client.get("/plans").text)
    assert found is not None
    return found[1]
