"""The command line as a whole: a lazy list of commands, each with help, none that fails with a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from include.cli.main import COMMANDS, app, main
from include.cli.terminal import table_of
from include.ground.settings import CLONE, InvalidSetting, load_settings

HEAVY = ("pydantic", "pyarrow", "polars", "duckdb", "deltalake", "sqlalchemy", "confluent_kafka", "pyspark")


def command_lines(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_lines(inner, (*words, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_subcommand_shows_its_help(name: str) -> None:
    for words in command_lines(COMMANDS[name].load(name), (name,)):
        shown = CliRunner().invoke(app, [*words, "--help"])
        assert shown.exit_code == 0, shown.output
        assert "Usage:" in shown.output


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_shows_the_first_paragraph_of_each_help(name: str) -> None:
    text = COMMANDS[name].load(name).help
    assert " ".join(text.split("\n\n")[0].split()) == COMMANDS[name].summary


def inner_commands(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from inner_commands(inner)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_contain_no_brackets_that_the_terminal_removes_as_markup(name: str) -> None:
    for command in inner_commands(COMMANDS[name].load(name)):
        for text in [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]:
            assert Text.from_markup(text).plain == text


def test_command_list_imports_no_command() -> None:
    code = (
        "import sys; sys.argv = ['headrace', '--help']\n"
        "from include.cli.main import app\n"
        "try: app()\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=CLONE, capture_output=True, text=True, check=True)
    assert ended.stderr.strip() == "[]"


def test_unknown_command_is_a_usage_error_that_suggests_a_similar_one() -> None:
    ended = CliRunner().invoke(app, ["statsu"])
    assert ended.exit_code == 2
    assert "Did you mean 'status'" in ended.output


@pytest.mark.parametrize(
    "words",
    [
        "backfill plan --dataset nope --from 2013-01-01 --to 2013-01-02",
        "maintain --dataset nope",
        "quality report --dataset nope",
        "rejected discard --dataset nope --why x --reason y --yes",
        "rejected list --dataset nope",
        "release plan --dataset nope",
        "repair nope",
        "restore ../../nope --yes",
        "try nope",
        "up nope",
    ],
)
def test_unknown_dataset_is_refused_with_the_known_ones(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["headrace", *words.split()])
    load_settings.cache_clear()
    with pytest.raises(SystemExit) as ended:
        main()
    load_settings.cache_clear()
    assert ended.value.code == 2
    assert "use one of: flights, weather, weather_delays" in capsys.readouterr().err
    assert not (tmp_path / "leases").exists()


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


WITHOUT_JSON = {
    *("demo", "demo-change", "bench run", "bench peers", "bench show", "produce"),
    *("airflow", "console", "metrics", "alerts", "openlineage", "quality docs", "completion", "repair", "restore"),
}
"""They print a story, serve until Ctrl-C, ask a question, pass on to another program, or print one line of text."""


def test_every_command_with_a_result_prints_json() -> None:
    lines = [words for name in COMMANDS for words in command_lines(COMMANDS[name].load(name), (name,))]
    found = {" ".join(words): command_of(words) for words in lines}
    leaves = {name: command for name, command in found.items() if not hasattr(command, "commands")}
    without = {name for name, command in leaves.items() if "--json" not in options_of(command)}
    assert without == WITHOUT_JSON


def command_of(words: tuple[str, ...]) -> Any:
    command = COMMANDS[words[0]].load(words[0])
    for word in words[1:]:
        command = command.commands[word]
    return command


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "following"),
    [
        ("tables --json --nope", 2, "usage", "the same command with --help"),
        ("status --json --watch=1", 2, "usage", "the same command with --help"),
        ("try nope --json", 2, "dataset-unknown", "use one of: flights, weather, weather_delays"),
        ("plan show nope-1 --json", 2, "plan-unknown", "there are no plans yet"),
    ],
)
def test_error_is_one_object_for_programs(
    words: str, exit_code: int, code: str, following: str, command_line: CommandLine, tmp_path: Path
) -> None:
    ended = command_line(*words.split(), HEADRACE_STATE=str(tmp_path))
    assert (ended.code, ended.output) == (exit_code, "")
    values = json.loads(ended.errors)
    assert (values["code"], values["next"]) == (code, following)
    assert values["message"]


def completions(tmp_path: Path, *words: str) -> list[str]:
    """What bash completes after these words; the last one is incomplete."""
    asked = {
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("headrace", *words)),
        "COMP_CWORD": str(len(words)),
        "HEADRACE_STATE": str(tmp_path),
    }
    program = Path(sys.executable).parent / "headrace"
    done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("stat",), ["status"]),
        (("plan", "ro"), ["rollback"]),
        (("status", "--w"), ["--watch"]),
        (("release", "plan", "--dataset", "wea"), ["weather", "weather_delays"]),
    ],
)
def test_shell_completes_what_may_follow(tmp_path: Path, words: tuple[str, ...], found: list[str]) -> None:
    assert completions(tmp_path, *words) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_scripts_of_their_shell(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell]).output
    assert "_HEADRACE_COMPLETE" in script
    if program := shutil.which(shell):
        assert subprocess.run([program, "-n"], input=script, text=True, check=False).returncode == 0


PATH = "/state/warehouse/flights/c491e67ed50a/gold/carrier_hours"


def printed(width: int) -> list[str]:
    """A table as a terminal of this width shows it."""
    rows = [("gold.carrier_hours", 116_904, "hours of a carrier at an airport", PATH)]
    console = Console(width=width, force_terminal=True, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(table_of(("table", "rows", "about", "path"), rows))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_table_that_is_wider_than_the_terminal_is_shown_row_by_row() -> None:
    wide, narrow, tight = printed(140), printed(110), printed(80)
    assert (len(wide), len(narrow)) == (2, 3), "a sentence is wrapped between words"
    assert all(PATH in " ".join(lines) for lines in (wide, narrow, tight))
    assert tight[:4] == [
        "table  gold.carrier_hours",
        "rows   116,904",
        "about  hours of a carrier at an airport",
        f"path   {PATH}",
    ]
    assert max(map(len, printed(40))) <= 40


def test_contradicting_options_are_refused_without_words_of_the_library() -> None:
    words = ["backfill", "plan", "--dataset", "flights", "--from", "2013-06-10", "--to", "2013-06-01"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2
    assert "Invalid value: --from is not before --to" in ended.output


def test_folder_is_refused_as_the_file_of_a_duckdb_database(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["tables", "--duckdb", str(tmp_path)])
    assert ended.exit_code == 2
    assert "is not the name of a file" in " ".join(ended.output.replace("│", " ").split())


def test_setting_of_another_form_is_refused_with_its_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRIVER_MEMORY", "3x")
    load_settings.cache_clear()
    with pytest.raises(InvalidSetting, match=r"HEADRACE_DRIVER_MEMORY: must have the form .*: driver JVM heap"):
        load_settings()
