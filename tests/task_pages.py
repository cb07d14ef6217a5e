"""A page of the documentation as a shell script: its commands, and what the page says that they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from include.ground.settings import CLONE

FENCED = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY = "…"
DOCS = CLONE / "docs"
# Pages whose commands need what a test's machine lacks, or make the state of a whole clone; README.md lists pages.
NOT_EXECUTED = {
    "tutorials": {"README", "demo", "mirror-a-database"},
    "how-to": {
        "README",
        "airflow",
        "changes",
        "console",
        "existing-airflow",
        "history-from-files",
        "install",
        "kubernetes",
        "many-small-streams",
        "metrics-and-alerts",
        "more-load",
        "nested-records",
        "one-record-many-rows",
        "state-by-key",
        "openlineage",
        "rules",
        "run-the-tests",
        "several-hosts",
        "sizing",
        "stack",
        "troubleshooting",
        "your-kafka",
    },
}


@dataclass(frozen=True)
class Block:
    """Commands, and the output that the page shows for them; None when it shows none."""

    commands: str
    shown: str | None


def pages() -> list[Path]:
    """Return the pages that are executed: all tutorials and how-to pages but those named above."""
    return [
        page
        for kind, not_executed in NOT_EXECUTED.items()
        for page in sorted((DOCS / kind).glob("*.md"))
        if page.stem not in not_executed
    ]


def blocks_of(page: str) -> list[Block]:
    """Return the commands of a page in order, each with the output shown directly behind it."""
    return list(_paired(FENCED.findall(page)))


def _paired(fenced: list[tuple[str, str]]) -> Iterator[Block]:
    for (kind, text), (following, shown) in zip(fenced, [*fenced[1:], ("", "")], strict=True):
        if kind == "sh":
            yield Block(text, shown if following == "text" else None)


def script_of(blocks: list[Block]) -> str:
    """Return one script that runs all blocks, in one shell, and ends at the first command that fails."""
    return "set -euo pipefail\n" + "".join(f"echo '{_mark(n)}'\n{block.commands}" for n, block in enumerate(blocks))


def printed_by(output: str, blocks: list[Block]) -> list[str]:
    """Return what each block printed."""
    parts = output
    printed: list[str] = []
    for n in reversed(range(len(blocks))):
        parts, _, last = parts.rpartition(f"{_mark(n)}\n")
        printed.append(last)
    return printed[::-1]


def is_shown(shown: str, printed: str) -> bool:
    """Whether the output is what the page shows, where `…` alone on a line is any lines, and within a line any text."""
    return re.fullmatch("".join(map(_pattern, shown.splitlines())), printed.rstrip("\n") + "\n") is not None


def _pattern(line: str) -> str:
    if line == ANY:
        return r"(?:.*\n)*"
    return ".*".join(map(re.escape, line.rstrip().split(ANY))) + r"[ ]*\n"


def _mark(n: int) -> str:
    return f"::block {n}::"
