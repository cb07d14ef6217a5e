"""Paths in the state folder: one function for each kind."""

from __future__ import annotations

from pathlib import Path

from include.ground.errors import Terminal
from include.ground.settings import Settings, with_password

LONGEST_NAME = 200


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


def _process_name(process: str) -> str:
    return folder_name("process", process.replace(":", "-"))


def warehouse(settings: Settings) -> Path:
    """Folder of all tables; paths in a publication are relative to it."""
    return settings.state / "warehouse"


def bronze_path(settings: Settings, dataset: str) -> Path:
    """Table `bronze.<dataset>`, shared by all releases."""
    return warehouse(settings) / folder_name("dataset", dataset) / "bronze"


def reference_path(settings: Settings, dataset: str, table: str) -> Path:
    """Reference table `table` of a dataset, shared by all releases."""
    return warehouse(settings) / folder_name("dataset", dataset) / "reference" / folder_name("table", table)


def release_path(settings: Settings, dataset: str, release: str) -> Path:
    """Folder of the tables that one release built."""
    return warehouse(settings) / folder_name("dataset", dataset) / folder_name("release", release)


def silver_path(settings: Settings, dataset: str, release: str) -> Path:
    """Table `silver.<dataset>` of a release."""
    return release_path(settings, dataset, release) / "silver"


def rejected_path(settings: Settings, dataset: str, release: str) -> Path:
    """Table `rejected.<dataset>` of a release."""
    return release_path(settings, dataset, release) / "rejected"


def identities_path(settings: Settings, dataset: str, release: str) -> Path:
    """Index of the identities in a release's silver; derived from it."""
    return release_path(settings, dataset, release) / "identities"


def gold_path(settings: Settings, dataset: str, release: str, table: str) -> Path:
    """Table `gold.<table>` of a release."""
    return release_path(settings, dataset, release) / "gold" / folder_name("table", table)


def table_path(settings: Settings, dataset: str, release: str, table: str) -> Path:
    """Return the folder of a table by its qualified name: `bronze.…`, `silver.…`, `rejected.…` or `gold.<name>`."""
    layer, _, name = table.partition(".")
    if layer == "bronze":
        return bronze_path(settings, dataset)
    root = release_path(settings, dataset, release)
    return root / "gold" / folder_name("table", name) if layer == "gold" else root / folder_name("layer", layer)


def patch_path(settings: Settings, dataset: str, release: str, plan: str) -> Path:
    """Rows that a plan rebuilt, next to the release's tables and invisible to readers."""
    return release_path(settings, dataset, release) / "plans" / folder_name("plan", plan)


def patch_in_progress_path(settings: Settings, dataset: str, release: str) -> Path:
    """The patch that is being applied to a release's tables; the file exists only meanwhile."""
    return release_path(settings, dataset, release) / "patch_in_progress.json"


def derived_run_path(settings: Settings, dataset: str, release: str) -> Path:
    """The unfinished run of a derived dataset: its number and the versions of its sources."""
    return release_path(settings, dataset, release) / "run.json"


def shadow_publication_path(settings: Settings, dataset: str, release: str) -> Path:
    """The publication of an unpublished release of a derived dataset."""
    return release_path(settings, dataset, release) / "shadow_publication.json"


def verified_path(settings: Settings, dataset: str, release: str, plan: str) -> Path:
    """The range that a plan recomputed and found equal."""
    return release_path(settings, dataset, release) / "verified" / f"{folder_name('plan', plan)}.json"


def decision_log_path(settings: Settings, dataset: str) -> Path:
    """Decisions of people about a dataset's rejected records."""
    # The file name of earlier versions.
    return warehouse(settings) / folder_name("dataset", dataset) / "amendments.jsonl"


def writer_schemas_path(settings: Settings, dataset: str) -> Path:
    """The schemas by which a dataset's records were written, kept next to bronze."""
    return warehouse(settings) / folder_name("dataset", dataset) / "writer_schemas.jsonl"


def quality_path(settings: Settings, dataset: str) -> Path:
    """The last validation results of a dataset's published tables, with a page of them."""
    return settings.state / "quality" / folder_name("dataset", dataset)


def docs_path(settings: Settings, dataset: str) -> Path:
    """The folder of the page of rule results; each `headrace quality run` replaces the page."""
    return quality_path(settings, dataset) / "docs"


def docs_page(settings: Settings, dataset: str) -> Path:
    """The page of the last rule results."""
    return docs_path(settings, dataset) / "overview.html"


def audit_path(settings: Settings, dataset: str) -> Path:
    """The outcome of the last audit of a dataset."""
    return settings.state / "audits" / f"{folder_name('dataset', dataset)}.json"


def verified_history_path(settings: Settings, dataset: str) -> Path:
    """What the last balanced audit of a dataset verified."""
    return settings.state / "audits" / f"{folder_name('dataset', dataset)}.verified.json"


def publication_path(settings: Settings, dataset: str) -> Path:
    """The publication: the published versions."""
    return warehouse(settings) / folder_name("dataset", dataset) / "publication.json"


def store_owner_path(settings: Settings, dataset: str) -> Path:
    """The name by which the object store knows this copy of a dataset's tables."""
    return warehouse(settings) / folder_name("dataset", dataset) / "store_owner.json"


def restoring_path(settings: Settings, dataset: str) -> Path:
    """The tables that `headrace restore` is fetching; they are moved to their place when they are whole."""
    return settings.state / "restoring" / folder_name("dataset", dataset)


def snapshots_path(settings: Settings, dataset: str) -> Path:
    """Folder of the copies that a dataset's releases have of its folder."""
    return settings.state / "releases" / folder_name("dataset", dataset)


def snapshot_path(settings: Settings, dataset: str, release: str) -> Path:
    """The release's own copy of the dataset's folder."""
    return snapshots_path(settings, dataset) / folder_name("release", release)


def checkpoint_path(settings: Settings, dataset: str) -> Path:
    """Checkpoint of the dataset's ingest query."""
    return settings.state / "checkpoints" / folder_name("dataset", dataset)


def removed_commits_path(settings: Settings, dataset: str) -> Path:
    """Log files that were removed from tables after a power cut, and bronze's records in them; one folder each time."""
    return settings.state / "removed" / folder_name("dataset", dataset)


def removed_tables_path(settings: Settings, dataset: str) -> Path:
    """Folder to which the tables of ended releases are moved, to be deleted there; one folder for each release."""
    return removed_commits_path(settings, dataset) / "tables"


def removed_data_path(settings: Settings, dataset: str) -> Path:
    """Folder to which other data of ended plans is moved, to be deleted there."""
    return removed_commits_path(settings, dataset) / "ended"


def console_path(settings: Settings) -> Path:
    """Folder of the console: its port, and the log of actions."""
    return settings.state / "console"


def lease_path(settings: Settings, dataset: str) -> Path:
    """The file whose OS lock makes a process the owner of a dataset's tables."""
    return settings.state / "leases" / f"{folder_name('dataset', dataset)}.lock"


def lease_domain_path(settings: Settings) -> Path:
    """The random name under which leases of this state folder are kept in a database."""
    return settings.state / "leases" / "domain"


def runner_lock_path(settings: Settings) -> Path:
    """The file whose OS lock makes a process the runner of the state folder."""
    return settings.state / "run" / "runner.lock"


def alerts_path(settings: Settings) -> Path:
    """States of the alerts that `headrace alerts` evaluates."""
    return settings.state / "alerts.json"


def metrics_path(settings: Settings) -> Path:
    """Folder of the metrics endpoint: its port."""
    return settings.state / "metrics"


def openlineage_path(settings: Settings) -> Path:
    """Folder of the cursors of sent OpenLineage events."""
    return settings.state / "openlineage"


def reading_lock_path(settings: Settings, dataset: str) -> Path:
    """The file that jobs lock while they read versions of a dataset's tables that must not be deleted."""
    return settings.state / "leases" / f"{folder_name('dataset', dataset)}.reading"


def release_lease_path(settings: Settings, dataset: str, release: str) -> Path:
    """The file whose OS lock makes a process the owner of one release's tables."""
    return settings.state / "leases" / f"{folder_name('dataset', dataset)}-{folder_name('release', release)}.lock"


def active_releases_path(settings: Settings, dataset: str) -> Path:
    """The names of the active releases, which the driver advances."""
    return warehouse(settings) / folder_name("dataset", dataset) / "active_releases.json"


def request_path(settings: Settings, dataset: str) -> Path:
    """The pending request to a dataset's owner; the response is the file next to it."""
    return settings.state / "requests" / f"{folder_name('dataset', dataset)}.json"


def analyses_path(settings: Settings, dataset: str) -> Path:
    """The published analyses of a dataset, and the folder of each."""
    return settings.state / "analyses" / folder_name("dataset", dataset)


def analysis_table_path(settings: Settings, dataset: str, name: str) -> Path:
    """Table `analysis.<name>`."""
    return analyses_path(settings, dataset) / folder_name("analysis", name) / "table"


def analysis_run_path(settings: Settings, dataset: str, name: str) -> Path:
    """Rows and iterations of the run that is not finished."""
    return analyses_path(settings, dataset) / folder_name("analysis", name) / "run"


def plan_path(settings: Settings, plan: str) -> Path:
    """The folder of one plan."""
    return settings.state / "plans" / folder_name("plan", plan)


def ended_runs_path(settings: Settings) -> Path:
    """The runs of Airflow that ended lately without a plan."""
    return settings.state / "ended_runs.json"


def desired_path(settings: Settings, dataset: str) -> Path:
    """The last request to run or stop a dataset's stream."""
    return settings.state / "desired" / f"{folder_name('dataset', dataset)}.json"


def run_path(settings: Settings, process: str) -> Path:
    """Record of a started process; `process` is `runner`, `broker` or `stream:<dataset>`."""
    return settings.state / "run" / f"{_process_name(process)}.json"


def status_path(settings: Settings, process: str) -> Path:
    """A driver's status, written about once a second."""
    return settings.state / "run" / f"{_process_name(process)}.status.json"


def log_path(settings: Settings, process: str) -> Path:
    """Output of a process."""
    return settings.state / "logs" / f"{_process_name(process)}.log"


def spill_path(settings: Settings, process: str) -> Path:
    """Temporary files of a process; they do not outlive it."""
    return settings.state / "spill" / folder_name("process", str(process))


def kafka_path(settings: Settings) -> Path:
    """The embedded broker's data and configuration."""
    return settings.state / "kafka"


def api_token_path(settings: Settings) -> Path:
    """The file of the token by which this state folder's Airflow uses the API."""
    return console_path(settings) / "api-token"


def airflow_path(settings: Settings) -> Path:
    """Airflow's home: its database, logs and secrets."""
    return settings.state / "airflow"


def ledger_url(settings: Settings) -> str:
    """SQLAlchemy URL of the ledger. Raises PasswordUnreadable."""
    return database_url(settings, settings.ledger_url) or f"sqlite:///{settings.state / 'ledger.sqlite'}"


def lease_url(settings: Settings) -> str:
    """URL of the leases' database, for PostgreSQL's own client. Raises PasswordUnreadable."""
    return database_url(settings, settings.lease_url.replace("+psycopg", "", 1))


def database_url(settings: Settings, url: str) -> str:
    """Return the URL of a database with the password of HEADRACE_DATABASE_PASSWORD_FILE. Raises PasswordUnreadable."""
    return with_password(url, "HEADRACE_DATABASE_PASSWORD_FILE", settings.database_password_file)
