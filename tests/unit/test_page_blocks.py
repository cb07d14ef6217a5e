"""What the runner of the task pages takes for a match, since a page that matches everything would test nothing."""

from __future__ import annotations

import pytest
from task_pages import Block, blocks_of, is_shown, printed_by, script_of

PAGE = """# Title
```sh
echo one
```
Words.
```text
one
```
```
not run
```
```sh
echo two
```
"""


def test_page_yields_its_commands_with_the_output_behind_them() -> None:
    assert blocks_of(PAGE) == [Block("echo one\n", "one\n"), Block("echo two\n", None)]


def test_output_is_split_by_block() -> None:
    blocks = blocks_of(PAGE)
    assert "echo one" in script_of(blocks)
    assert printed_by("::block 0::\none\n::block 1::\ntwo\n", blocks) == ["one\n", "two\n"]


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("one\n", "one\n", True),
        ("one\n", "two\n", False),
        ("one\n", "one\nmore\n", False),
        ("…\nbalanced\n", "a\nb\nbalanced\n", True),
        ("…\nbalanced\n", "a\nnot balanced\n", False),
        ("balanced\n…\n", "balanced\n", True),
        ("after … s\n", "after 3.1 s\n", True),
        ("after … s\n", "after 3.1 s\n3 s\n", False),
        ("│ 1 │\n", "│ 11 │\n", False),
    ],
)
def test_shown_output_matches_only_what_it_stands_for(shown: str, printed: str, same: bool) -> None:
    assert is_shown(shown, printed) is same
