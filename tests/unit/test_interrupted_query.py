"""What DuckDB raises for Ctrl-C in a query ends a command as Ctrl-C does elsewhere: exit code 130, no traceback."""

from __future__ import annotations

import pytest

from include.cli import main
from include.cli.main import INTERRUPTED


def fail_with(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    def fail(**_: bool) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(main, "app", fail)


def test_interrupted_query_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, "Query interrupted")
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == INTERRUPTED


def test_other_runtime_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, "a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        main.main()
