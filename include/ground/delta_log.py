"""A Delta table's commits: from the compact history, then from the log's JSON files. No Spark and no table state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import orjson

from include.ground.app_ids import OWNER_APP_ID, is_refresh
from include.ground.commit_history import historic_commit, historic_commits, history_end
from include.ground.errors import Terminal
from include.ground.stored_path import StoredPath, delta_options, names_in

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG = "_delta_log"
TRANSACTION, TRANSACTIONS = "transaction", "transactions"
"""Keys of a fenced commit's metadata: its own transaction, and those of all app ids."""
COMMIT_FILE = re.compile(r"^(\d{20})\.json$")


class LogDamaged(Terminal):
    """A commit file is empty, cut short or no JSON; `path` names it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"commit file {path} {why}; nothing after it can be trusted, so reading stopped there",
            "headrace repair DATASET   (removes what a power cut left at the end of the log)",
        )
        self.path = path


class LogIncomplete(Terminal):
    """A version is missing between two others; `table` and `version` identify it."""

    def __init__(self, table: Path, version: int) -> None:
        super().__init__(
            f"{table} has no commit file of version {version}, but later ones", f"restore {commit_name(version)}"
        )
        self.table = table
        self.version = version


@dataclass(frozen=True)
class AddedFile:
    """A data file that a commit added: path inside the table, size in bytes; `data_change` unless it was compacted."""

    path: str
    size: int
    data_change: bool


@dataclass(frozen=True)
class Commit:
    """One version of a table.

    `timestamp_ms` is the commit's own (commitInfo), in UTC milliseconds. `metadata` is our parsed userMetadata; None
    for commits without one (creation, maintenance) or of another program. `app_id`, `app_version` are the transaction;
    of a fenced table the metadata has it, and `owner` is the version of the owner's. `transactions`: those of all app
    ids up to this version, which claims and some other commits of a fenced table restate; None in all others.
    """

    version: int
    timestamp_ms: int
    metadata: dict[str, Any] | None
    app_id: str | None
    app_version: int | None
    added: tuple[AddedFile, ...]
    removed: int
    owner: int | None = None
    transactions: Mapping[str, int] | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The metadata; empty when it has none."""
        return self.metadata or {}


class CommitMissing(Terminal):
    """The log has no commit of a batch, although the table's transaction version includes it."""

    def __init__(self, table: Path, batch: int) -> None:
        super().__init__(
            f"{table}: the log has no commit of batch {batch}, although the table includes it; nothing was written",
            "headrace audit",
        )
        self.table = table
        self.batch = batch


def commit_name(version: int) -> str:
    """Return the file name of a version's commit."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Return the file name of the checkpoint at a version."""
    return f"{version:020d}.checkpoint.parquet"


def open_delta(table: Path, version: int | None = None) -> DeltaTable:
    """Open a table here or in a store, by delta-rs. Raises DeltaError."""
    from deltalake import DeltaTable

    return DeltaTable(str(table), version=version, storage_options=delta_options(table))


def log_versions(table: Path, after: int = -1) -> list[int]:
    """Return the versions whose commit files are there, ascending; of a table in a store only those after a version.

    Raises Terminal (`table-missing`) without a log.
    """
    try:
        names = names_in(table / LOG, "" if after < 0 else commit_name(after))
    except FileNotFoundError as error:
        what, remedy = f"{table} is not a Delta table: it has no {LOG}", "headrace tables   (lists the tables)"
        raise Terminal(what, remedy, code="table-missing") from error
    return sorted(int(match[1]) for name in names if (match := COMMIT_FILE.match(name)))


def commits(table: Path, after: int = -1) -> Iterator[Commit]:
    """Yield the commits of versions > `after`, ascending, each once: from the history, then from the log.

    Raises LogIncomplete at a hole, LogDamaged or HistoryDamaged at an unreadable file. The first one may be later than
    `after` + 1 when Delta's log clean-up removed old files: compare its version.
    """
    versions = log_versions(table, after)
    # After the listing: what the owner moves meanwhile is in the history, where `read_commit` finds it.
    end = history_end(table)
    for version, data in historic_commits(table, after + 1, end):
        yield _parsed(_commit_path(table, version), version, data)
    expected = max(end, after + 1) if end else None
    for version in versions:
        if version <= after or version < end:
            continue
        if expected is not None and version != expected:
            raise LogIncomplete(table, expected)
        yield read_commit(table, version)
        expected = version + 1


def latest_version(table: Path) -> int:
    """Return the table's version, -1 for an empty log. Does not list the log: O(log new commits) file look-ups.

    Raises Terminal (`table-missing`). Starts at the version that the log's last checkpoint has.
    """
    version = last_checkpoint(table)
    if version is None or not has_commit(table, version):
        if not has_commit(table, 0):
            return max(log_versions(table), default=-1)
        version = 0
    step = 1
    while has_commit(table, version + step):
        version, step = version + step, step * 2
    while step := step // 2:
        version += step if has_commit(table, version + step) else 0
    return version


def has_commit(table: Path, version: int) -> bool:
    """Return whether the log or the history has the commit of a version."""
    return _commit_path(table, version).exists() or 0 <= version < history_end(table)


def checkpoint_file(table: Path, version: int) -> Path:
    """Return the path of the checkpoint at `version`, written or not."""
    return table / LOG / checkpoint_name(version)


def refuse_lost_commits(table: Path, version: int) -> None:
    """Raise LogDamaged unless each commit from the last checkpoint up to `version` has a file with content.

    A power cut leaves empty files, but no store does. delta-rs reads one as a commit without actions: it opens the
    table with too few rows, and without an error.
    """
    if isinstance(table, StoredPath):
        return
    for number in range(version, -1, -1):
        path = _commit_path(table, number)
        try:
            if path.stat().st_size == 0:
                raise LogDamaged(path, "is empty")
        except FileNotFoundError as error:
            raise LogDamaged(path, "is missing") from error
        if checkpoint_file(table, number).exists():
            return


def last_checkpoint(table: Path) -> int | None:
    """Return the version that `_last_checkpoint` names, None without a readable one."""
    try:
        return int(orjson.loads((table / LOG / "_last_checkpoint").read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def transaction_version(table: Path, app_id: str) -> int | None:
    """Return the last transaction version of `app_id`, also of a commit that the log no longer has; None for none."""
    return found_transaction(open_delta(table), table, app_id)


def found_transaction(delta: DeltaTable, table: Path, app_id: str) -> int | None:
    """Return what `transaction_version` does, of an open table as of its version."""
    own = delta.transaction_version(app_id)
    if app_id == OWNER_APP_ID or delta.transaction_version(OWNER_APP_ID) is None:
        return own
    return fenced_transactions(table, delta.version()).get(app_id, own)


def fenced_transactions(table: Path, version: int) -> dict[str, int]:
    """Return the last transactions of a fenced table's app ids up to a version, but those from before its first claim.

    Reads the commits back to the last one that restates them all.
    """
    found: dict[str, int] = {}
    for commit in commits_descending(table, version):
        if commit.app_id is not None and commit.app_version is not None:
            found.setdefault(commit.app_id, commit.app_version)
        if commit.transactions is not None:
            return {**commit.transactions, **found}
    return found


def commits_descending(table: Path, last: int | None = None) -> Iterator[Commit]:
    """Yield the commits from version `last` (default: the newest) down to the first, without listing the log."""
    version = latest_version(table) if last is None else last
    while version >= 0 and has_commit(table, version):
        yield read_commit(table, version)
        version -= 1


def newest_metadata(table: Path, version: int, key: str) -> Mapping[str, Any]:
    """Return the metadata of the newest commit up to `version` whose metadata has `key`; empty when none has."""
    found = (commit.metadata for commit in commits_descending(table, version))
    return next((metadata for metadata in found if metadata is not None and key in metadata), {})


def commits_following(table: Path, after: int) -> Iterator[Commit]:
    """Yield the commits right after version `after` as `commits` does, without listing the log: O(new commits)."""
    version = after + 1
    while has_commit(table, version):
        yield read_commit(table, version)
        version += 1


def transaction_commit(table: Path, app_id: str, number: int, known: int | None = None) -> Commit:
    """Return the commit of a transaction; `known`: its version, or a later one. Raises CommitMissing."""
    for commit in commits_descending(table, known):
        if (commit.app_id, commit.app_version) == (app_id, number):
            return commit
    raise CommitMissing(table, number)


def batch_commit(table: Path, batch: int) -> Commit:
    """Return the commit of bronze, or of silver's run, that has a batch. Raises CommitMissing.

    Batches ascend with versions: reads O(log n) files, n = batches after this one.
    """
    high, step = latest_version(table), 1
    low = high
    while low > 0 and _batch_at(table, low)[0] > batch:
        high, low, step = low, max(0, low - step), step * 2
    while low <= high:
        middle = (low + high) // 2
        found, commit = _batch_at(table, middle)
        if commit is not None and commit.facts["batches"][0] <= batch <= found:
            return commit
        if commit is None or found < batch:
            low = middle + 1
        else:
            high = commit.version - 1
    raise CommitMissing(table, batch)


def last_run(table: Path, version: int) -> tuple[int, int]:
    """Return first and last batch of the last run committed in versions up to `version`; (-1, -1) for none."""
    _, commit = _batch_at(table, version)
    first, last = (-1, -1) if commit is None else commit.facts["batches"]
    return first, last


def _batch_at(table: Path, version: int) -> tuple[int, Commit | None]:
    """Return the last batch committed in versions up to `version`, with its commit; -1 for none."""
    for commit in commits_descending(table, version):
        batches = commit.facts.get("batches")
        if batches and "plan" not in commit.facts:
            return batches[1], commit
    return -1, None


def latest_patch(table: Path, own: Commit) -> Commit:
    """Return the last patch, refresh or expiry between a batch's commit `own` and the next batch's; `own` if there is
    none."""
    newest = own
    for commit in commits_following(table, own.version):
        is_between = not {"plan", "expired"}.isdisjoint(commit.facts)
        if is_between or is_refresh(commit.app_id):
            newest = commit
        elif commit.app_id is not None:
            break
    return newest


def read_commit(table: Path, version: int) -> Commit:
    """Read one version; LogDamaged when its file is empty or cut short, FileNotFoundError when there is none."""
    return _parsed(_commit_path(table, version), version, commit_content(table, version))


def commit_content(table: Path, version: int) -> bytes:
    """Return the content of a version's commit file, also of one that is in the history only.

    Raises FileNotFoundError, HistoryDamaged.
    """
    try:
        return _commit_path(table, version).read_bytes()
    except FileNotFoundError:
        content = historic_commit(table, version)
        if content is None:
            raise
        return content


def _commit_path(table: Path, version: int) -> Path:
    return table / LOG / commit_name(version)


def _parsed(path: Path, version: int, data: bytes) -> Commit:
    if not data.strip():
        raise LogDamaged(path, "is empty")
    try:
        actions = [orjson.loads(line) for line in data.splitlines() if line.strip()]
    except orjson.JSONDecodeError as error:
        raise LogDamaged(path, f"is cut short or no JSON ({error})") from error
    return _commit(path, version, actions)


def _commit(path: Path, version: int, actions: list[dict[str, Any]]) -> Commit:
    info = _only(actions, "commitInfo")
    if info is None or not isinstance(info.get("timestamp"), int):
        raise LogDamaged(path, "has no commitInfo with a timestamp")
    transaction = _only(actions, "txn") or {}
    metadata, is_fenced = _metadata(info), transaction.get("appId") == OWNER_APP_ID
    if not is_fenced:
        _refuse_cut(path, metadata, transaction.get("appId"))
    app_id, app_version = transaction.get("appId"), transaction.get("version")
    if is_fenced:
        app_id, app_version = (metadata or {}).get(TRANSACTION, (None, None))
    return Commit(
        version=version,
        timestamp_ms=info["timestamp"],
        metadata=metadata,
        app_id=app_id,
        app_version=app_version,
        added=tuple(_added_file(action["add"]) for action in actions if "add" in action),
        removed=sum("remove" in action for action in actions),
        owner=transaction["version"] if is_fenced else None,
        transactions=info.get(TRANSACTIONS) or (metadata or {}).get(TRANSACTIONS),
    )


def _added_file(add: dict[str, Any]) -> AddedFile:
    return AddedFile(add["path"], add["size"], add.get("dataChange", True))


def _only(actions: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((action[kind] for action in actions if kind in action), None)


def _metadata(info: dict[str, Any]) -> dict[str, Any] | None:
    """The userMetadata of other programs may be any string; it is not an error of the log."""
    try:
        parsed = orjson.loads(info.get("userMetadata") or "null")
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) and "app_id" in parsed else None


def _refuse_cut(path: Path, metadata: dict[str, Any] | None, app_id: str | None) -> None:
    """The transaction is the last action written, so its absence betrays a file cut at the end of a line."""
    if metadata and metadata["app_id"] != app_id:
        raise LogDamaged(path, f"is cut short: it names transaction {metadata['app_id']} and holds {app_id}")


@dataclass(frozen=True)
class FileChanges:
    """Paths below the table's folder: files of the later version only, and files of the earlier one only."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


def file_changes(table: Path, after: int, upto: int, *, rows_only: bool = False) -> FileChanges:
    """Return the files in which versions `after` and `upto` differ; O(commits between them).

    With `rows_only` commits that move rows between files (`dataChange=false`) are left out: the rows of `added` without
    those of `removed` are the new rows, also when a file is not of version `upto`. Raises FileNotFoundError when the
    log and its history lack one of the commits, HistoryDamaged.
    """
    added, removed = dict[str, None](), dict[str, None]()
    for version in range(after + 1, upto + 1):
        for line in commit_content(table, version).splitlines():
            action: dict[str, Any] = orjson.loads(line) if line.strip() else {}
            if rows_only and not (action.get("add") or action.get("remove") or {}).get("dataChange", True):
                continue
            # A removed file may be added again, by a rollback of the table.
            if "add" in action and removed.pop(path := unquote(action["add"]["path"]), path) is not None:
                added[path] = None
            if "remove" in action and added.pop(path := unquote(action["remove"]["path"]), path) is not None:
                removed[path] = None
    return FileChanges(tuple(added), tuple(removed))


def add_actions(table: DeltaTable) -> Any:
    """Return an open table's add actions as an Arrow table: `path`, `num_records`, `size_bytes`, `min.<column>`, …"""
    import pyarrow as pa

    # pa.table would import pandas (two seconds) to check whether its argument is a pandas frame.
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def current_files(table: Path) -> dict[str, int]:
    """Return path below the table's folder → bytes of the newest version's files. Raises deltalake's DeltaError."""
    rows = add_actions(open_delta(table))
    sizes = zip(rows["path"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True)
    return {unquote(path): size for path, size in sizes}


def obsolete_files(
    table: Path | str,
    keep_versions: Iterable[int],
    retention: timedelta,
    *,
    sweep: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the files, below the table's folder, that no version needs: neither `keep_versions`, nor the newest, nor
    one that was the newest within `retention` (whole hours). `sweep`: also uncommitted files that are older. `options`:
    of the store that an address names.
    """
    from deltalake import DeltaTable

    delta = DeltaTable(str(table), storage_options=dict(options) if options else delta_options(table))
    found = delta.vacuum(
        retention_hours=int(retention / timedelta(hours=1)),
        dry_run=True,
        full=sweep,
        enforce_retention_duration=False,
        keep_versions=sorted({delta.version(), *keep_versions}),
    )
    return [unquote(path) for path in found]
