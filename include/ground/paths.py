"""Paths in the state folder: one declared place for each kind, a function of the settings and the names in braces."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from include.ground.errors import Terminal
from include.ground.settings import Settings, with_password
from include.ground.stored_path import stored_root

LONGEST_NAME = 200
NAME = re.compile(r"\{(\w+)\}")
OfState = Callable[[Settings], Path]
OfOne = Callable[[Settings, str], Path]
OfTwo = Callable[[Settings, str, str], Path]
OfThree = Callable[[Settings, str, str, str], Path]


class NotAFolderName(Terminal):
    """`name` would lead out of the state folder, or no file system takes it; `kind` is dataset, plan …"""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{name[:80]!r} is not the name of a {kind}: it must be 1 to {LONGEST_NAME} bytes, not . or .., without /",
            "headrace status   (names the datasets)",
        )
        self.kind, self.name = kind, name


def folder_name(kind: str, name: str) -> str:
    """Return `name`, which becomes one folder of a path. Raises NotAFolderName when it cannot."""
    if name in {"", ".", ".."} or "/" in name or "\0" in name or len(name.encode(errors="replace")) > LONGEST_NAME:
        raise NotAFolderName(kind, name)
    return name


def warehouse(settings: Settings) -> Path:
    """Folder of all tables, here or in a store; paths in a publication are relative to it."""
    return stored_root(settings) if settings.stores_tables else settings.state / "warehouse"


def _path(place: str, root: OfState = attrgetter("state")) -> Callable[..., Path]:
    kinds = NAME.findall(place)

    def path(settings: Settings, *names: str) -> Path:
        folders = {kind: _folder(kind, name) for kind, name in zip(kinds, names, strict=True)}
        return root(settings) / place.format_map(folders)

    return path


def _table(place: str) -> Callable[..., Path]:
    return _path(place, warehouse)


def _folder(kind: str, name: str) -> str:
    return folder_name(kind, name.replace(":", "-") if kind == "process" else name)


local_warehouse: OfState = _path("warehouse")
"""Folder of what lies next to tables and is always here: publications, decisions, unfinished work."""
bronze_path: OfOne = _table("{dataset}/bronze")
"""Table `bronze.<dataset>`, shared by all releases."""
reference_path: OfTwo = _table("{dataset}/reference/{table}")
"""Reference table `table` of a dataset, shared by all releases."""
release_path: OfTwo = _path("warehouse/{dataset}/{release}")
"""Folder of what one release keeps on this host; its tables too, unless they lie in a store."""
release_tables_path: OfTwo = _table("{dataset}/{release}")
"""Folder of one release's tables."""
silver_path: OfTwo = _table("{dataset}/{release}/silver")
"""Table `silver.<dataset>` of a release."""
rejected_path: OfTwo = _table("{dataset}/{release}/rejected")
"""Table `rejected.<dataset>` of a release."""
identities_path: OfTwo = _path("warehouse/{dataset}/{release}/identities")
"""Index of the identities in a release's silver; derived from it."""
gold_path: OfThree = _table("{dataset}/{release}/gold/{table}")
"""Table `gold.<table>` of a release."""
patch_path: OfThree = _path("warehouse/{dataset}/{release}/plans/{plan}")
"""Rows that a plan rebuilt, next to the release's tables and invisible to readers."""
patch_in_progress_path: OfTwo = _path("warehouse/{dataset}/{release}/patch_in_progress.json")
"""The patch that is being applied to a release's tables; the file exists only meanwhile."""
derived_run_path: OfTwo = _path("warehouse/{dataset}/{release}/run.json")
"""The unfinished run of a derived dataset: its number and the versions of its sources."""
shadow_publication_path: OfTwo = _path("warehouse/{dataset}/{release}/shadow_publication.json")
"""The publication of an unpublished release of a derived dataset."""
verified_path: OfThree = _path("warehouse/{dataset}/{release}/verified/{plan}.json")
"""The range that a plan recomputed and found equal."""
# The file name of earlier versions.
decision_log_path: OfOne = _path("warehouse/{dataset}/amendments.jsonl")
"""Decisions of people about a dataset's rejected records."""
writer_schemas_path: OfOne = _path("warehouse/{dataset}/writer_schemas.jsonl")
"""The schemas by which a dataset's records were written, kept next to bronze."""
draft_path: OfOne = _path("drafts/{dataset}")
"""Folder of the draft of a dataset's next release."""
quality_path: OfOne = _path("quality/{dataset}")
"""The last validation results of a dataset's published tables, with a page of them."""
docs_path: OfOne = _path("quality/{dataset}/docs")
"""The folder of the page of rule results; each `headrace quality run` replaces the page."""
docs_page: OfOne = _path("quality/{dataset}/docs/overview.html")
"""The page of the last rule results."""
audit_path: OfOne = _path("audits/{dataset}.json")
"""The outcome of the last audit of a dataset."""
verified_history_path: OfOne = _path("audits/{dataset}.verified.json")
"""What the last balanced audit of a dataset verified."""
publication_path: OfOne = _path("warehouse/{dataset}/publication.json")
"""The publication: the published versions."""
store_owner_path: OfOne = _path("warehouse/{dataset}/store_owner.json")
"""The name by which the object store knows this copy of a dataset's tables."""
restoring_path: OfOne = _path("restoring/{dataset}")
"""The tables that `headrace restore` is fetching; they are moved to their place when they are whole."""
snapshots_path: OfOne = _path("releases/{dataset}")
"""Folder of the copies that a dataset's releases have of its folder."""
snapshot_path: OfTwo = _path("releases/{dataset}/{release}")
"""The release's own copy of the dataset's folder."""
checkpoint_path: OfOne = _path("checkpoints/{dataset}")
"""Checkpoint of the dataset's ingest query."""
removed_commits_path: OfOne = _path("removed/{dataset}")
"""Log files that were removed from tables after a power cut, and bronze's records in them; one folder each time."""
removed_tables_path: OfOne = _path("removed/{dataset}/tables")
"""Folder to which the tables of ended releases are moved, to be deleted there; one folder for each release."""
removed_data_path: OfOne = _path("removed/{dataset}/ended")
"""Folder to which other data of ended plans is moved, to be deleted there."""
console_path: OfState = _path("console")
"""Folder of the console: its port, and the log of actions."""
lease_path: OfOne = _path("leases/{dataset}.lock")
"""The file whose OS lock makes a process the owner of a dataset's tables."""
lease_domain_path: OfState = _path("leases/domain")
"""The random name under which leases of this state folder are kept in a database."""
runner_lock_path: OfState = _path("run/runner.lock")
"""The file whose OS lock makes a process the runner of the state folder."""
alerts_path: OfState = _path("alerts.json")
"""States of the alerts that `headrace alerts` evaluates."""
metrics_path: OfState = _path("metrics")
"""Folder of the metrics endpoint: its port."""
openlineage_path: OfState = _path("openlineage")
"""Folder of the cursors of sent OpenLineage events."""
reading_lock_path: OfOne = _path("leases/{dataset}.reading")
"""The file that jobs lock while they read versions of a dataset's tables that must not be deleted."""
release_lease_path: OfTwo = _path("leases/{dataset}-{release}.lock")
"""The file whose OS lock makes a process the owner of one release's tables."""
active_releases_path: OfOne = _path("warehouse/{dataset}/active_releases.json")
"""The names of the active releases, which the driver advances."""
request_path: OfOne = _path("requests/{dataset}.json")
"""The pending request to a dataset's owner; the response is the file next to it."""
analyses_path: OfOne = _path("analyses/{dataset}")
"""The published analyses of a dataset, and the folder of each."""
analysis_table_path: OfTwo = _path("analyses/{dataset}/{analysis}/table")
"""Table `analysis.<name>`."""
analysis_run_path: OfTwo = _path("analyses/{dataset}/{analysis}/run")
"""Rows and iterations of the run that is not finished."""
plan_path: OfOne = _path("plans/{plan}")
"""The folder of one plan."""
ended_runs_path: OfState = _path("ended_runs.json")
"""The runs of Airflow that ended lately without a plan."""
desired_path: OfOne = _path("desired/{dataset}.json")
"""The last request to run or stop a dataset's stream."""
run_path: OfOne = _path("run/{process}.json")
"""Record of a started process; `process` is `runner`, `broker` or `stream:<dataset>`."""
status_path: OfOne = _path("run/{process}.status.json")
"""A driver's status, written about once a second."""
log_path: OfOne = _path("logs/{process}.log")
"""Output of a process."""
spill_path: OfOne = _path("spill/{process}")
"""Temporary files of a process; they do not outlive it."""
kafka_path: OfState = _path("kafka")
"""The embedded broker's data and configuration."""
api_token_path: OfState = _path("console/api-token")
"""The file of the token by which this state folder's Airflow uses the API."""
airflow_path: OfState = _path("airflow")
"""Airflow's home: its database, logs and secrets."""


def table_path(settings: Settings, dataset: str, release: str, table: str) -> Path:
    """Return the folder of a table by its full name; tables of children lie where gold does, under their full names."""
    layer, _, name = table.partition(".")
    if layer == "bronze":
        return bronze_path(settings, dataset)
    root = warehouse(settings) / folder_name("dataset", dataset) / folder_name("release", release)
    if layer == "gold" or name != dataset:
        return root / "gold" / folder_name("table", name if layer == "gold" else table)
    return root / folder_name("layer", layer)


def ledger_url(settings: Settings) -> str:
    """SQLAlchemy URL of the ledger. Raises PasswordUnreadable."""
    return database_url(settings, settings.ledger_url) or f"sqlite:///{settings.state / 'ledger.sqlite'}"


def lease_url(settings: Settings) -> str:
    """URL of the leases' database, for PostgreSQL's own client. Raises PasswordUnreadable."""
    return database_url(settings, settings.lease_url.replace("+psycopg", "", 1))


def database_url(settings: Settings, url: str) -> str:
    """Return the URL of a database with the password of HEADRACE_DATABASE_PASSWORD_FILE. Raises PasswordUnreadable."""
    return with_password(url, "HEADRACE_DATABASE_PASSWORD_FILE", settings.database_password_file)
