"""The database that an audit compares mirrors with: what its URL says, and what is never shown of it."""

from __future__ import annotations

import psycopg
import pytest

from include.audit import source
from include.audit.source import SourceDatabase, SourceUnusable


@pytest.mark.parametrize(
    "address",
    [
        "user:p@ss/w:rd@host/bank",
        "user:p@ss@host/bank",
        "user:p/ss@host/bank",
        "user:p%ss@host/bank",
        "user:p@[ss/bank",
        "user:ss",
        "host/bank?p=ss",
    ],
)
def test_url_that_cannot_be_read_is_refused_without_any_part_of_it(address: str) -> None:
    with pytest.raises(SourceUnusable, match="cannot be read") as refused:
        SourceDatabase(f"postgresql://{address}")
    shown = refused.value.what + refused.value.remedy
    assert ("ss/" in shown, "rd@" in shown, "'" in shown, refused.value.__cause__) == (False, False, False, None)


def test_password_in_a_url_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[dict[str, object]]()

    def refuse(**parameters: object) -> None:
        given.append(parameters)
        raise psycopg.OperationalError("connection refused")

    monkeypatch.setattr(source.psycopg, "connect", refuse)
    with pytest.raises(SourceUnusable, match="connection refused"):
        SourceDatabase("postgresql+psycopg://user:p%40ss%2Fw:rd@host:5433/bank")
    assert given[0].items() >= {"user": "user", "password": "p@ss/w:rd", "host": "host", "dbname": "bank"}.items()


def test_connections_are_closed_when_there_is_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = list[str]()

    class Connection:
        def close(self) -> None:
            closed.append("closed")

        def execute(self, *_: object) -> Connection:
            return self

        def fetchall(self) -> list[object]:
            return []

    monkeypatch.setattr(source.psycopg, "connect", lambda **_: Connection())
    with pytest.raises(SourceUnusable, match="no logical replication slot"):
        SourceDatabase("postgresql://user@host/bank")
    assert closed == ["closed"] * 2
