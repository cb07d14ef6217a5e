"""JsonFile: typed, atomic JSON files of the state folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.state.json_file import JsonFile, StateFileUnreadable


@dataclass(frozen=True)
class Sample:
    name: str
    since: datetime
    active: bool = True
    offsets: Mapping[int, int] = field(default_factory=dict)


SAMPLE = Sample("flights", datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), False, {0: 12, 11: 3})


def sample_file(path: Path) -> JsonFile[Sample]:
    return JsonFile(path / "sample.json", Sample, "rm it", "it was ignored", former_keys={"wanted": "active"})


def test_written_value_is_read_back(tmp_path: Path) -> None:
    file = sample_file(tmp_path / "new folder")
    assert file.read() is None
    file.write(SAMPLE)
    assert file.read() == SAMPLE
    assert [path.name for path in file.path.parent.iterdir()] == ["sample.json"]
    file.remove()
    file.remove()
    assert file.read() is None


def test_former_key_is_read_and_unknown_key_is_ignored(tmp_path: Path) -> None:
    file = sample_file(tmp_path)
    file.path.write_text('{"name": "x", "since": "2026-01-02T03:04:05+00:00", "wanted": false, "later": 1}')
    read = file.read()
    assert read is not None
    assert (read.active, read.since) == (False, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ("{\n nonsense", "", "line 2: not JSON"),
        ("", "", "line 1: not JSON"),
        ("[]", "", "found: []"),
        ('{"name": "x"}', "since", "key since: Field required"),
        ('{"name": 7, "since": "2026-01-02T03:04:05Z"}', "name", "found: 7"),
        ('{"name": "x", "since": "2026-01-02T03:04:05Z", "wanted": "yes"}', "active", "found: 'yes'"),
        ('{"name": "x", "since": "soon"}', "since", "found: 'soon'"),
    ],
)
def test_unreadable_file_names_file_key_and_remedy(tmp_path: Path, text: str, key: str, why: str) -> None:
    file = sample_file(tmp_path)
    file.path.write_text(text)
    with pytest.raises(StateFileUnreadable) as raised:
        file.read()
    assert (raised.value.path, raised.value.key, raised.value.remedy) == (file.path, key, "rm it")
    assert why in raised.value.what
    assert raised.value.what.endswith("; it was ignored")
    assert file.read_if_valid() is None


def test_bytes_that_are_no_text_are_unreadable(tmp_path: Path) -> None:
    file = sample_file(tmp_path)
    file.path.write_bytes(b"\xff\xfe")
    with pytest.raises(StateFileUnreadable):
        file.read()


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = sample_file(tmp_path)
    file.write(SAMPLE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        file.write(Sample("other", SAMPLE.since))
    assert file.read() == SAMPLE


@pytest.mark.parametrize(("durable", "syncs"), [(True, 2), (False, 0)])
def test_only_durable_writes_are_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, syncs: int
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    JsonFile(tmp_path / "names.json", list[str], durable=durable).write(["a"])
    assert len(synced) == syncs
