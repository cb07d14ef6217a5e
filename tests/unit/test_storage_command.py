"""`headrace storage`: bytes by dataset and part in sensible units; an error when nothing is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from small_warehouse import SmallWarehouse, bronze_row
from typer.testing import CliRunner

from include.cli.main import app
from include.ground.errors import Terminal
from include.ground.settings import Settings, load_settings
from include.observe.ended_plans import disk_use
from include.plans.index import index_path


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    load_settings.cache_clear()
    yield load_settings()
    load_settings.cache_clear()


def storage(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["storage", *arguments])


def write(settings: Settings, path: str, size: int) -> None:
    file = settings.state / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def test_missing_or_empty_state_folder_is_an_error_with_a_next_command(settings: Settings) -> None:
    for _ in range(2):
        done = storage()
        assert getattr(done.exception, "code", "") == "nothing-stored"
        assert "headrace up" in done.exception.remedy
        assert done.exit_code != 0
        settings.state.mkdir(exist_ok=True)
    write(settings, "removed/flights/20260101T000000Z/00.json", 5)
    with pytest.raises(Terminal, match="nothing of dataset 'weather' is stored"):
        disk_use(settings, "weather")
    assert [use.total for use in disk_use(settings, "flights")] == [5]


def test_bytes_outside_the_warehouse_are_shown_by_dataset(settings: Settings) -> None:
    sales = SmallWarehouse(settings)
    sales.write("bronze", [bronze_row(0, b"1")])
    sales.move()
    write(settings, "removed/sales/20260101T000000Z/00.json", 1)
    write(settings, "releases/sales/abc/pipeline.yaml", 2)
    write(settings, "plans/release-sales-1/plan.json", 3)
    write(settings, "checkpoints/sales/offsets/0", 4)
    write(settings, "plans/planning.lock", 6)
    write(settings, "logs/runner.log", 7)
    found = json.loads(storage("--json").stdout)["parts"]
    by_name = {(part["dataset"], part["release"], part["name"]): part["current"] for part in found}
    index = sum(file.stat().st_size for file in index_path(settings).parent.iterdir())
    assert by_name.items() >= {
        ("sales", "all", "removed by repair"): 1, ("sales", "abc", "snapshot"): 2, ("sales", "all", "plans"): 3,
        ("sales", "all", "checkpoint"): 4, ("", "", "plans"): 6 + index, ("", "", "logs"): 7,
    }.items()  # fmt: skip
    own = json.loads(storage("sales", "--json").stdout)
    assert own["parts"] == [part for part in found if part["dataset"] == "sales"]


def test_small_sizes_are_not_shown_as_zero(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, size in (("one", 1), ("few", 999), ("more", 1500), ("large", 2_340_000)):
        write(settings, f"{name}/file", size)
    lines = {line.split()[1]: line.split()[2:] for line in storage().stdout.splitlines() if line.startswith("–")}
    assert lines == {"one": ["1", "B"], "few": ["999", "B"], "more": ["1.5", "kB"], "large": ["2.3", "MB"]}
