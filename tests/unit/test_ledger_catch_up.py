"""A ledger that was away for long is caught up in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from ledgered_stream import Stream

from include.ground.settings import Settings
from include.observe import ledger_writer
from include.observe.ledger_writer import open_writer, project_dataset, rebuild


def test_catching_up_holds_a_few_commits_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, writer = Stream(settings), open_writer(settings)
    for batch in range(7):
        stream.bronze(batch)
    sizes: list[int] = []
    original = ledger_writer.insert_commits

    def counted(connection: Any, path: str, found: list[Any], **named: Any) -> int:
        sizes.append(len(found))
        return original(connection, path, found, **named)

    monkeypatch.setattr(ledger_writer, "AT_ONCE", 3)
    monkeypatch.setattr(ledger_writer, "insert_commits", counted)
    assert project_dataset(writer, settings, "flights").commits == sum(sizes)
    assert max(sizes) == 3
    assert rebuild(settings).identical
    writer.close()
