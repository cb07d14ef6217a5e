"""Each command that a page or a message names exists, with each of its options: `headrace …` and `make …`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from typing import Any

import pytest
from source_tree import ROOT, code, files
from typer.main import get_command

from include.cli.main import app

BLOCK = re.compile(r"^ *```.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"``?([^`\n]+?)``?")
IN_MESSAGE = re.compile(r"`(headrace [^`]*)`|(?<![\w./`-])(headrace [a-z](?:(?!headrace)[^`\n,;:()→])*)")
SEPARATORS = {"|", "||", "&&", ";", "&", ">", ">>", "2>", "<"}
WORD = re.compile(r"[a-z][a-z-]*")
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
WITH_ARGUMENTS = re.compile(r"^([a-z-]+):.*\n(?:\t.*\n)*?\t.*headrace ([a-z -]+?) \$\(ARGS\)", re.MULTILINE)
# Names of Spark applications, of a thread and of a database's client.
NO_COMMANDS = {"listener", "shadow", "slice", "request", "leases"}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PAGES = [path for path in files() if path.endswith(".md")]


@cache
def command_at(path: tuple[str, ...]) -> Any:
    """The command or group that these words name; None when there is none."""
    if not path:
        return get_command(app)
    found = getattr(command_at(path[:-1]), "commands", {}).get(path[-1])
    declared = getattr(found, "_declared", None)
    return found if declared is None else declared.load(path[-1])


def faults_of_headrace(words: list[str]) -> Iterator[str]:
    """Why the words after `headrace` are no command with its options; alternatives are written `list|show`."""
    paths: list[tuple[str, ...]] = [()]
    while words and hasattr(command_at(paths[0]), "commands"):
        names = words[0].strip(".").split("|")
        if not all(WORD.fullmatch(name) for name in names):
            break
        paths, words = [(*paths[0], name) for name in names], words[1:]
        if unknown := [" ".join(path) for path in paths if command_at(path) is None]:
            yield f"there is no command {unknown[0]}"
            return
    commands = [command_at(path) for path in paths]
    if any(command.context_settings.get("ignore_unknown_options") for command in commands):
        return
    known = {name for command in commands for option in command.params for name in option.opts + option.secondary_opts}
    for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(words)):
        if option not in {"--help", *known}:
            yield f"{' '.join(paths[0])} has no option {option}"


def faults_of_make(words: list[str]) -> Iterator[str]:
    """Why the words after `make` name no target, or ARGS no options of the command that the target runs."""
    target = words[0] if words else ""
    if WORD.fullmatch(target) and target not in TARGET.findall(MAKEFILE):
        yield f"there is no target {target}"
    command = dict(WITH_ARGUMENTS.findall(MAKEFILE)).get(target)
    for word in words:
        if command and word.startswith("ARGS="):
            yield from faults_of_headrace([*command.split(), *word.removeprefix("ARGS=").split()])


def faults(text: str) -> Iterator[str]:
    """Why a line of a shell, or a command in a sentence, cannot be run."""
    plain = re.sub(r"[\[\]]", " ", text.replace("\\|", "|"))
    try:
        words = shlex.split(plain, comments=True)
    except ValueError:
        words = plain.split()
    for is_separator, group in groupby(words, SEPARATORS.__contains__):
        command = [] if is_separator else list(group)
        begin = next((n + 1 for n, word in enumerate(command) if re.search(r"(^|bin/)headrace$", word)), None)
        if begin is not None:
            yield from faults_of_headrace(command[begin:])
        elif command and command[0] == "make":
            yield from faults_of_make(command[1:])


def commands_of_page(text: str) -> list[str]:
    """The lines of code blocks, and what stands in backticks."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [*lines, *INLINE.findall(BLOCK.sub("", text))]


@pytest.mark.parametrize("path", PAGES)
def test_page_names_only_commands_that_exist(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert not [f"{command}: {fault}" for command in commands_of_page(text) for fault in faults(command)]


def test_table_of_commands_lists_only_commands_that_exist() -> None:
    section = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    commands = [command for cell in cells for command in INLINE.findall(cell)]
    short = [each for each in commands if WORD.match(each) and not each.startswith(("headrace", "make"))]
    assert (len(commands) > 40, len(short) > 4) == (True, True)
    assert not [f"{command}: {fault}" for command in short for fault in faults(f"headrace {command}")]


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string below; an f-string has `X` for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def test_code_names_only_commands_that_exist() -> None:
    found = [
        (f"{module.path}:{line}", next(filter(None, groups)).split())
        for module in code()
        for line, text in texts(module.tree)
        for groups in IN_MESSAGE.findall(text)
    ]
    commands = [(place, words[1:]) for place, words in found if words[1] not in NO_COMMANDS]
    assert len(commands) > 200
    assert not [f"{place}: {fault}" for place, words in commands for fault in faults_of_headrace(words)]


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("headrace statsu", "there is no command statsu"),
        ("headrace plan aprove ID", "there is no command plan aprove"),
        ("headrace plan list\\|shwo", "there is no command plan shwo"),
        ("HEADRACE_STATE=x .venv/bin/headrace wait --caught-upp | cat", "wait has no option --caught-upp"),
        ("headrace backfill run [--form TIME]", "backfill run has no option --form"),
        ("cd x && make tset", "there is no target tset"),
        ("make demo ARGS=--frehs", "demo has no option --frehs"),
    ],
)
def test_command_that_does_not_exist_is_found(command: str, fault: str) -> None:
    assert list(faults(command)) == [fault]
