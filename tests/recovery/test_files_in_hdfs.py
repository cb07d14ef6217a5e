"""Files of records in a real HDFS: found by a pattern, read, checked for changes, and named when it is away."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from error_codes import raises
from fsspec.implementations.webhdfs import WebHDFS
from hadoop_cluster import Hadoop, hadoop_cluster

from include.ground.errors import Transient
from include.ground.settings import Settings
from include.read.record_files import payloads
from include.read.record_stores import checksum, find_files, how_changed

pytestmark = [pytest.mark.timeout(600), pytest.mark.extended]
LINES = [b'{"n": %d}' % n for n in range(20_000)]


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop_cluster(tmp_path_factory.mktemp("cluster"), nodes=0) as found:
        yield found


def test_files_are_found_read_and_checked(hadoop: Hadoop, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "root")
    address = hadoop.web_address()
    host, _, port = address.partition(":")
    store = WebHDFS(host, int(port), user="root")
    store.makedirs("/history/2019")
    for name, lines in (("a", LINES[:15_000]), ("b", LINES[15_000:])):
        store.pipe_file(f"/history/2019/{name}.jsonl.gz", gzip.compress(b"\n".join(lines)))
    store.pipe_file("/history/c.csv", b"id\n")

    found = find_files(settings, f"webhdfs://{address}/history/**/*.jsonl.gz")
    assert [each.address for each in found] == [f"webhdfs://{address}/history/2019/{n}.jsonl.gz" for n in "ab"]
    read = [value for each in found for rows in payloads(settings, each.address, "jsonl") for value in rows.to_pylist()]
    assert read == LINES

    first = found[0]
    planned = (settings, first.address, first.size, first.modified_ns, checksum(settings, first.address))
    assert how_changed(*planned) == ""
    store.pipe_file("/history/2019/a.jsonl.gz", bytes(first.size))
    assert "another one" in how_changed(*planned)
    store.rm("/history/2019/a.jsonl.gz")
    assert how_changed(*planned) == "it is gone"

    hadoop.kill_files()
    with raises(Transient, "files-unreadable", match="cannot be read"):
        find_files(settings, found[1].address)
