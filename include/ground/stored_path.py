"""Paths in an object store, where the backend `spark` may keep tables (adr-0001): what `pathlib` does, by requests.

Spark and delta-rs open the text of such a path. Code that reads the log or a file of a table is the same for both.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from io import BytesIO
from math import inf
from pathlib import Path, PosixPath
from shutil import disk_usage, rmtree
from typing import Any

from include.ground.errors import Terminal
from include.ground.object_store import ObjectStore, StoreUnavailable, arrow_client, find_store
from include.ground.settings import Settings, load_settings

_reached: dict[str, Settings] = {}
"""By location of a store: the settings by which this process reaches it."""
ACCESS = {"warehouse", "warehouse_endpoint", "warehouse_key_id", "warehouse_secret_file"}


class NotOnThisHost(Terminal):
    """A step needs a file or folder of this host, and `path` lies in an object store."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} lies in an object store, and this step works with folders of this host only; it did nothing",
            "docs/how-to/tables-on-s3.md   (what works with tables at s3a://)",
            code="not-on-this-host",
        )
        self.path = path


class StoredPath(PosixPath):
    """A path below HEADRACE_WAREHOUSE. What is not overridden here needs a local path, and raises NotOnThisHost.

    A folder exists as long as it has objects. Raises StoreUnavailable.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        raise NotOnThisHost(str(self))

    def read_bytes(self) -> bytes:
        store, key = _place(self)
        found = store.read(key)
        if found is None:
            raise _missing(self)
        return found.content

    def read_text(self, encoding: str | None = None, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: Any) -> int:
        store, key = _place(self)
        store.write(key, bytes(data))
        return len(data)

    def create(self, content: bytes) -> bool:
        """Write an object unless there is one; return whether it has this content, which nobody else writes."""
        store, key = _place(self)
        return store.create(key, content) or self.read_bytes() == content

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        if mode != "rb":
            raise NotOnThisHost(str(self))
        return BytesIO(self.read_bytes())

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        store, key = _place(self)
        found = store.find(key)
        if found is None:
            raise _missing(self)
        seconds, nanoseconds = found.written.timestamp(), int(found.written.timestamp() * 1e6) * 1000
        times = (*[int(seconds)] * 3, *[seconds] * 3, *[nanoseconds] * 3)
        return os.stat_result((0o100644, 0, 0, 1, 0, 0, found.size, *times))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        store, key = _place(self)
        return store.find(key) is not None

    is_file = exists

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        store, key = _place(self)
        return next(store.list(key), None) is not None

    def unlink(self, missing_ok: bool = False) -> None:
        store, key = _place(self)
        store.delete([key])

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: objects make their folders."""

    def iterdir(self) -> Any:
        store, key = _place(self)
        return (self / each.rpartition("/")[2] for each in store.children(key))

    def glob(self, pattern: Any, **options: Any) -> Any:
        """Yield files and folders by a pattern without `**`; lists only the folders that a wildcard is in."""
        first, _, rest = str(pattern).partition("/")
        if set("*?[") & set(first):
            found = [each for each in self.iterdir() if fnmatchcase(each.name, first)]
        else:
            found = [each for each in [self / first] if rest or each.exists() or each.is_dir()]
        for each in found:
            yield from each.glob(rest) if rest else [each]

    def rglob(self, pattern: Any, **options: Any) -> Any:
        """Yield the files below the folder whose names match."""
        store, key = _place(self)
        paths = (self / each.key.removeprefix(f"{key}/") for each in store.list(key))
        return (path for path in paths if fnmatchcase(path.name, str(pattern)))


def stored_root(settings: Settings) -> StoredPath:
    """Return the path of the settings' store. Sends nothing."""
    location = settings.warehouse.rstrip("/")
    _reached[location] = settings
    return StoredPath(location)


def access_to(paths: Iterable[Path]) -> dict[str, Any]:
    """Return what another process, which has no settings, needs for `reach_store`; nothing for paths of this host."""
    stored = next((each for each in paths if isinstance(each, StoredPath)), None)
    if stored is None:
        return {}
    return _settings_of(stored).model_dump(mode="json", include=ACCESS)


def reach_store(access: Mapping[str, Any]) -> None:
    """Let this process reach the store that `access_to` was asked about."""
    if access:
        stored_root(Settings(**access, backend="spark"))


def _location(text: str) -> str:
    return max((each for each in _reached if f"{text}/".startswith(f"{each}/")), key=len)


def _place(path: StoredPath) -> tuple[ObjectStore, str]:
    """Return the store of a path, and its key there."""
    store = find_store(_settings_of(path))
    assert store is not None, "the settings name it"
    return store, str(path)[len(_location(str(path))) + 1 :]


def _settings_of(path: StoredPath) -> Settings:
    if not _reached:
        stored_root(load_settings())
    return _reached[_location(str(path))]


def _missing(path: StoredPath) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such object", str(path))


def names_in(folder: Path, after: str = "") -> list[str]:
    """Return the names of a folder's files; of one in a store, which may be long, only those after a name.

    Raises FileNotFoundError without the folder.
    """
    if not isinstance(folder, StoredPath):
        return os.listdir(folder)
    store, key = _place(folder)
    found = [each.key.removeprefix(f"{key}/") for each in store.list(key, f"{key}/{after}" if after else None)]
    if not found and not after:
        raise _missing(folder)
    return found


def remove_tree(folder: Path) -> None:
    """Remove a folder with its files; what cannot be removed stays, for the next clean-up to find.

    Logs of tables go first, their checkpoints before their commits: nobody can open a table of which a part is gone.
    """
    if isinstance(folder, StoredPath):
        store, key = _place(folder)
        with suppress(StoreUnavailable):
            keys = (each.key for each in store.list(key))
            store.delete(sorted(keys, key=lambda each: ("/_delta_log/" not in each, "checkpoint" not in each, each)))
    else:
        rmtree(folder, ignore_errors=True)


def sizes_below(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield path and bytes of all files below a folder; those that are deleted meanwhile do not count."""
    if isinstance(folder, StoredPath):
        store, key = _place(folder)
        yield from ((folder / each.key.removeprefix(f"{key}/"), each.size) for each in store.list(key))
        return
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield (path := Path(root, name)), path.lstat().st_size


def free_bytes(folder: Path) -> float:
    """Return how much the disk of a folder has room for; a store has no bound."""
    return inf if isinstance(folder, StoredPath) else disk_usage(folder).free


def text_below(root: Path, path: Path) -> str:
    """Return the text of a path: relative to `root`, unless it lies in a store."""
    return str(path) if isinstance(path, StoredPath) else str(path.relative_to(root))


def path_below(root: Path, text: str) -> Path:
    """Return the path of which `text_below` returned the text."""
    return path_of(text) if "://" in text else root / text


def path_of(text: str) -> Path:
    """Return the path of which this is the text."""
    return StoredPath(text) if "://" in text else Path(text)


def arrow_source(path: Path) -> Any:
    """Return what Arrow opens a file by: its path, or the open file of a store. Raises FileNotFoundError."""
    return arrow_files(path.parent).open_input_file(path.name) if isinstance(path, StoredPath) else path


def arrow_files(folder: Path) -> Any:
    """Return Arrow's file system of a folder."""
    from pyarrow import fs

    if isinstance(folder, StoredPath):
        return fs.SubTreeFileSystem(str(folder).partition("://")[2], arrow_client(_settings_of(folder)))
    # Arrow's own file system reads local files without a detour through Python; delta-rs's would copy each block.
    return fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())


@contextmanager
def arrow_sink(path: Path) -> Iterator[Any]:
    """Yield what Arrow writes a new file to: its path, or of one in a store a buffer that is sent at the end."""
    if not isinstance(path, StoredPath):
        yield path
        return
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    yield sink
    path.write_bytes(sink.getvalue())


def delta_options(table: Path | str) -> dict[str, str] | None:
    """Return what delta-rs needs besides the text of a table's path."""
    return dict(_place(table)[0].delta_options) if isinstance(table, StoredPath) else None
