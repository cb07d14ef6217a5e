"""Where files of records lie: patterns as a shell has them, addresses, and stores that are not known."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from error_codes import raises
from stored_site import create_bucket, endpoint_of, running_store, stored_settings

from include.ground.errors import Refused, Transient
from include.ground.settings import Settings
from include.read.record_files import payloads
from include.read.record_stores import checksum, find_files, how_changed, place_of

FILES = ("2019/a.jsonl", "2019/b.jsonl", "2019/b.csv", "2019/.c.jsonl", "2020/x/c.jsonl", "d.jsonl", "e f[1].jsonl")
Named = Callable[[str], Sequence[str]]


@pytest.fixture
def named(tmp_path: Path) -> Named:
    """Return a function that finds files below a folder of FILES, by a pattern."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    settings = Settings(state=tmp_path / "state")

    def found(pattern: str, before: str = "") -> list[str]:
        files = find_files(settings, f"{before}{tmp_path}/{pattern}")
        return [str(Path(file.address).relative_to(tmp_path)) for file in files]

    return found


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("2019/*.jsonl", ["2019/a.jsonl", "2019/b.jsonl"]),
        ("2019/.*", ["2019/.c.jsonl"]),
        ("**/*.jsonl", ["2019/a.jsonl", "2019/b.jsonl", "2020/x/c.jsonl", "d.jsonl", "e f[1].jsonl"]),
        ("2020/**", ["2020/x/c.jsonl"]),
        ("20**.jsonl", ["2019/.c.jsonl", "2019/a.jsonl", "2019/b.jsonl", "2020/x/c.jsonl"]),
        ("20??/?.csv", ["2019/b.csv"]),
        ("2019/[!a].jsonl", ["2019/b.jsonl"]),
        ("2019/[b-z].*", ["2019/b.csv", "2019/b.jsonl"]),
        ("2019/[z-a].jsonl", []),
        ("e f[[]1].jsonl", ["e f[1].jsonl"]),
        ("d.jsonl", ["d.jsonl"]),
        ("e.jsonl", []),
        ("e/*", []),
    ],
)
def test_pattern_names_files_as_in_a_shell(named: Named, pattern: str, files: list[str]) -> None:
    assert named(pattern) == files


def test_address_of_a_file_may_be_a_url(tmp_path: Path) -> None:
    (tmp_path / "a b.jsonl").write_text("{}\n")
    found = find_files(Settings(state=tmp_path / "state"), f"file://{tmp_path}/a%20b.jsonl")
    assert [file.address for file in found] == [str(tmp_path / "a b.jsonl")]


def test_store_that_is_not_read_is_refused(tmp_path: Path) -> None:
    with raises(Refused, "store-unknown", match="ftp://host/a.jsonl: files are read at s3://, web"):
        find_files(Settings(state=tmp_path / "state"), "ftp://host/a.jsonl")


def test_files_of_a_store_are_found_read_and_checked(tmp_path: Path) -> None:
    with running_store() as store:
        settings = stored_settings(tmp_path, endpoint_of(store), "history")
        create_bucket(endpoint_of(store), "history")

        def put(name: str, content: bytes) -> None:
            place = place_of(settings, f"s3://history/{name}")
            with place.system.open_output_stream(place.path, compression=None) as stream:
                stream.write(content)

        lines = [b'{"n": %d}' % n for n in range(5_000)]
        put("2019/a.jsonl.gz", gzip.compress(b"\n".join(lines)))
        put("2019/deep/b.jsonl", b"{}\n")
        put("2019/c.csv", b"n\n1\n")
        (file,) = find_files(settings, "s3://history/2019/*.gz")
        assert [each.address for each in find_files(settings, "s3://history/**")] == [
            "s3://history/2019/a.jsonl.gz",
            "s3://history/2019/c.csv",
            "s3://history/2019/deep/b.jsonl",
        ]
        read = [value for rows in payloads(settings, file.address, "jsonl") for value in rows.to_pylist()]
        assert (file.address, read) == ("s3://history/2019/a.jsonl.gz", lines)
        planned = (settings, file.address, file.size, 0, checksum(settings, file.address))
        assert how_changed(*planned) == ""
        put("2019/a.jsonl.gz", bytes(file.size))
        assert "is another one" in how_changed(*planned)
        assert find_files(settings, "s3://nowhere/*.gz") == []
    with raises(Transient, "files-unreadable", match="s3://history/2019/a.jsonl.gz cannot be read"):
        find_files(settings, file.address)
