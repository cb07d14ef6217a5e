"""README: short, and what it shows is so: its dataset is valid, its commands are those of an executed tutorial."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from task_pages import DOCS, NOT_EXECUTED, blocks_of, pages

from include.declare.dataset import declared_dataset
from include.declare.inferred_dataset import inferred_dataset
from include.declare.sample_records import record_sample
from include.declare.scaffold import write_folder
from include.ground.settings import CLONE, Settings

README = (CLONE / "README.md").read_text("utf-8")
MOST_WORDS = 700


def test_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_dataset_of_readme_is_valid(tmp_path: Path) -> None:
    [pipeline] = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    records = [
        json.dumps({"order_id": f"o{n}", "placed_at": f"2026-03-01T08:{n:02}:00Z", "customer": "c", "amount": n / 4})
        for n in range(40)
    ]
    sample = record_sample("sample", [record.encode() for record in records])
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    inferred = inferred_dataset("orders", "orders", sample, datetime(2026, 6, 1, tzinfo=UTC))
    folder = write_folder(settings, inferred, sample)
    (folder / "pipeline.yaml").write_text(pipeline, "utf-8")
    assert [table.name for table in declared_dataset(settings, "orders").pipeline.gold] == ["customer_days"]
    assert len(pipeline.splitlines()) == 10


def test_commands_of_readme_are_executed_by_a_tutorial() -> None:
    commands = [line.split("#")[0].strip() for block in blocks_of(README) for line in block.commands.splitlines()]
    tutorial = DOCS / "tutorials" / "change-it-while-it-runs.md"
    lines = "".join(block.commands for block in blocks_of(tutorial.read_text("utf-8")))
    executed = [line.removesuffix(" || true") for line in lines.splitlines()]
    assert tutorial in pages()
    assert [line for line in executed if line in commands] == commands


def test_each_page_is_executed_or_named_as_not() -> None:
    for kind, names in NOT_EXECUTED.items():
        assert names <= {page.stem for page in (DOCS / kind).glob("*.md")}
        assert not [name for name in names if "```sh" in (DOCS / kind / f"{name}.md").read_text("utf-8")]
    assert all("```sh" in page.read_text("utf-8") for page in pages())
    assert len(pages()) >= 11


def test_pages_with_a_star_are_those_that_are_executed() -> None:
    starred = re.findall(r"\(([\w-]+)\.md\) ?\*", (DOCS / "how-to" / "README.md").read_text("utf-8"))
    assert sorted(starred) == [page.stem for page in pages() if page.parent.name == "how-to"]
