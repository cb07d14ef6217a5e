"""Airflow's logging for tasks whose logs are files that the web server reads itself.

The web server also queries the log server of a running task's worker. There is none, since all parts share the folder:
each log would say "Could not read served logs".
"""

from __future__ import annotations

import copy
from typing import Any

from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG
from airflow.utils.log.file_task_handler import FileTaskHandler


class LocalTaskLogs(FileTaskHandler):
    """Reads the logs of tasks from the shared folder alone."""

    def _read_from_logs_server(self, ti: Any, worker_log_rel_path: str) -> Any:
        return [], []


LOGGING_CONFIG: dict[str, Any] = copy.deepcopy(DEFAULT_LOGGING_CONFIG)
"""Named in `[logging] logging_config_class` by `headrace up --airflow`."""
LOGGING_CONFIG["handlers"]["task"]["class"] = f"{LocalTaskLogs.__module__}.{LocalTaskLogs.__name__}"
