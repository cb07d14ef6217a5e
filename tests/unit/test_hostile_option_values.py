"""No value of an option or argument ends in a traceback: each is used or refused.

Every command is called once per parameter and hostile value, a third of them in `make test`, the other required
parameters with harmless values, in an empty state folder. Nothing is started, killed, served or sent: these functions
are replaced by a refusal.
"""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from include.cli.main import COMMANDS, LazyCommand, main
from include.ground.errors import Terminal
from include.ground.paths import NotAFolderName, bronze_path, silver_path
from include.ground.settings import load_settings

HOSTILE = (
    *("", " ", "²", "٣", "-1", "0", "0.9", "nan", "inf", "1e400", "true", "99999999999999999999", "9" * 5000),
    *("0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "2013-02-30", "0.2%", "200%", "nan%", "²%"),
    *("²..³", "7..3", '{"0":"12"}', "[", "/proc/no/file", "../..", "a/b", "x" * 5000, "[bold]", "'; DROP", "\ud800"),
)
# A value for each required parameter that no other value depends on.
HARMLESS = {"partition": "0", "offset": "0", "dataset": "flights", "feed": "flights", "kind": "x"}


class OutsideRefused(Terminal):
    """This test starts, kills, serves and contacts nothing."""


def refuse(*_: object, **__: object) -> None:
    raise OutsideRefused("this test starts, kills, serves and contacts nothing", "")


# Built once per command, not once per call: half of the time of this module.
LOAD = cache(LazyCommand.load)


@pytest.fixture(autouse=True)
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for owner, name in ((subprocess, "Popen"), (os, "kill"), (os, "killpg")):
        monkeypatch.setattr(owner, name, refuse)
    for owner, name in ((socket.socket, "connect"), (socketserver.TCPServer, "server_activate"), (uvicorn, "run")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(time, "sleep", refuse)
    monkeypatch.setattr(LazyCommand, "load", LOAD)
    monkeypatch.setattr("include.ground.kafka.AdminClient", refuse)
    load_settings.cache_clear()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    load_settings.cache_clear()


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the commands that are no groups, with the words that call them."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*words, name))


def command_lines(words: tuple[str, ...], command: Any) -> Iterator[list[str]]:
    """Yield a command line for each parameter that takes a value and each hostile value."""
    taking = [each for each in command.params if not getattr(each, "is_flag", False)]
    for hostile in taking:
        for value in HOSTILE:
            given = {each: HARMLESS.get(each.name, "x") for each in taking if each.required} | {hostile: value}
            options = [f"{each.opts[0]}={text}" for each, text in given.items() if each.opts[0].startswith("-")]
            arguments = [text for each, text in given.items() if not each.opts[0].startswith("-")]
            yield [*words, *options, "--", *arguments]


def traceback_of(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return the exit code other than 0, 1 and 2, or the error that `main` does not handle; None otherwise."""
    monkeypatch.setattr(sys, "argv", ["headrace", *words])
    try:
        main()
    except SystemExit as ended:
        return None if ended.code in (0, 1, 2, None) else f"{[word[:60] for word in words]}: exit {ended.code}"
    except Exception as error:  # noqa: BLE001  (whatever it is, a user would see its traceback)
        return f"{[word[:60] for word in words]}: {error!r:.200}"
    return None


LEAVES = [leaf for name, declared in COMMANDS.items() for leaf in leaves(declared.load(name), (name,))]


# A third takes each value with some parameters of every command, and each parameter with ten of the values.
@pytest.mark.parametrize("third", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in (1, 2))])
@pytest.mark.parametrize(("words", "command"), LEAVES, ids=[" ".join(words) for words, _ in LEAVES])
def test_hostile_value_is_used_or_refused_without_a_traceback(
    words: tuple[str, ...], command: Any, third: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = islice(command_lines(words, command), third, None, 3)
    wrong = [found for line in lines if (found := traceback_of(line, monkeypatch))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["", ".", "..", "/etc", "../other", "a/b", "x" * 201, "a\0b"])
def test_no_path_of_a_dataset_or_release_leaves_the_state_folder(name: str) -> None:
    settings = load_settings()
    for path in (lambda: bronze_path(settings, name), lambda: silver_path(settings, "flights", name)):
        with pytest.raises(NotAFolderName):
            path()
