"""Ctrl-C while DuckDB runs a query ends a command as it does elsewhere: exit code 130, no traceback."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from include.cli import main as cli
from include.cli.exit_codes import INTERRUPTED
from include.reading.memory_database import memory_database

# A minute's work, in small steps.
LONG = "select sum(sqrt(a.range * b.range)) from range(100000) a, range(100000) b"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT as a command does: a worker of a parallel test run ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_a_query_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", lambda: memory_database().execute(LONG).fetchall())
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == INTERRUPTED


def test_other_runtime_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main()
