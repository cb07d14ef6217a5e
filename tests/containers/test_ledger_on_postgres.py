"""The ledger on a real PostgreSQL server: the rows of SQLite's, two writers, a server killed, a wrong password."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from error_codes import raises
from ledgered_stream import Stream
from postgres_container import PostgresContainer, docker, start_postgres
from sqlalchemy import select, text

from include.ground.errors import Transient
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.ledger_schema import FACTS, open_engine
from include.observe.ledger_writer import open_writer, project_dataset, rebuild

FLIGHTS = "flights"
pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresContainer]:
    """A server for the tests of this file."""
    found = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield found
    docker("rm", "--force", "--volumes", found.name)


@pytest.fixture
def on_postgres(settings: Settings, server: PostgresContainer) -> Settings:
    """Settings whose ledger is an empty one on the server."""
    given = settings.model_copy(update={"ledger_url": server.url()})
    with open_engine(given).begin() as connection:
        connection.execute(text("drop schema if exists headrace cascade"))
    return given


def facts(settings: Settings) -> dict[str, list[Any]]:
    """Return all rows of all tables of facts."""
    with open_engine(settings).connect() as connection:
        return {table.name: sorted(map(tuple, connection.execute(select(table))), key=str) for table in FACTS}


def project(settings: Settings) -> None:
    """Enter all commits of the stream."""
    with closing(open_writer(settings)) as writer:
        project_dataset(writer, settings, FLIGHTS)


def test_ledger_holds_the_rows_that_sqlite_holds(settings: Settings, on_postgres: Settings) -> None:
    stream = Stream(settings)
    for first, last in ((0, 0), (1, 3), (4, 4)):
        stream.run(first, last)
        project(settings)
        project(on_postgres)
    assert facts(on_postgres) == facts(settings)
    assert len(facts(on_postgres)["batches"]) == 5
    assert open_reader(on_postgres).totals() == open_reader(settings).totals()
    assert rebuild(on_postgres).identical


def test_two_writers_enter_each_commit_once(settings: Settings, on_postgres: Settings) -> None:
    Stream(settings).run(0, 30)
    project(settings)
    failures = list[BaseException]()

    def enter() -> None:
        try:
            project(on_postgres)
        except BaseException as error:  # noqa: BLE001  (reported by the test)
            failures.append(error)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert facts(on_postgres) == facts(settings)


def test_server_that_was_killed_is_an_outage_and_loses_nothing(
    settings: Settings, on_postgres: Settings, server: PostgresContainer
) -> None:
    stream = Stream(settings)
    stream.run(0, 1)
    with closing(open_writer(on_postgres)) as writer:
        project_dataset(writer, on_postgres, FLIGHTS)
        server.kill()
        stream.run(2, 2)
        with raises(Transient, "ledger-unavailable"):
            project_dataset(writer, on_postgres, FLIGHTS)
        server.start()
        project_dataset(writer, on_postgres, FLIGHTS)
    project(settings)
    assert facts(on_postgres) == facts(settings)


def test_wrong_password_is_an_outage_that_shows_no_password(settings: Settings, server: PostgresContainer) -> None:
    wrong = settings.model_copy(update={"ledger_url": server.url("wr0ng-s3cret")})
    with pytest.raises(Transient, match="is unavailable") as refused:
        open_reader(wrong).totals()
    assert "wr0ng-s3cret" not in str(refused.value)
    assert server.password not in str(refused.value)


def test_password_of_a_file_opens_the_ledger(on_postgres: Settings, server: PostgresContainer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{server.password}\n")
    by_file = on_postgres.model_copy(
        update={"ledger_url": server.url().replace(f":{server.password}@", "@"), "database_password_file": file}
    )
    Stream(by_file).run(0, 0)
    project(by_file)
    assert len(facts(by_file)["batches"]) == 1
