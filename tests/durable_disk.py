"""A model of the disk that a power cut leaves, the worst that POSIX allows.

A file has the content of its last fsync, or none; a folder has the entries of its last fsync. All else is lost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass
class DurableDisk:
    """What was forced to disk below `root`; `after_sync` is called after each fsync."""

    root: Path
    after_sync: Callable[[], object] = lambda: None
    contents: dict[int, bytes] = field(default_factory=dict)
    """By inode."""
    entries: dict[str, dict[str, int]] = field(default_factory=dict)
    """Names and inodes by folder."""
    handles: list[int] = field(default_factory=list)
    """Of synced files, so that no inode is used again."""

    @contextmanager
    def recording(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record each fsync; what is there at the start counts as synced."""
        self.sync_all()
        with monkeypatch.context() as patched:
            patched.setattr("os.fsync", self.fsync)
            patched.setattr("os.sync", self.sync_all)
            yield
        for handle in self.handles:
            os.close(handle)

    def sync_all(self) -> None:
        """Record everything, as `os.sync` does."""
        for folder, _, names in os.walk(self.root):
            self._record(Path(folder))
            for name in names:
                self._record(Path(folder, name))

    def fsync(self, handle: int) -> None:
        """Record one file or folder."""
        self._record(Path(os.readlink(f"/proc/self/fd/{handle}")))
        self.after_sync()

    def _record(self, path: Path) -> None:
        if path.is_dir():
            self.entries[str(path)] = {entry.name: entry.inode() for entry in os.scandir(path)}
            return
        handle = os.open(path, os.O_RDONLY)
        self.handles.append(handle)
        self.contents[os.stat(handle)[stat.ST_INO]] = path.read_bytes()

    def files(self) -> dict[Path, bytes]:
        """Return what a power cut leaves: content by path relative to the root."""
        return dict(self._files(self.root))

    def _files(self, folder: Path) -> Iterator[tuple[Path, bytes]]:
        for name, inode in self.entries.get(str(folder), {}).items():
            path = folder / name
            if str(path) in self.entries:
                yield from self._files(path)
            elif not path.is_dir():
                yield path.relative_to(self.root), self.contents.get(inode, b"")


def write_files(files: Mapping[Path, bytes], folder: Path) -> None:
    """Write what a power cut leaves into `folder`."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
