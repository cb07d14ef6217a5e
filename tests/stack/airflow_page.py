"""Airflow of one state folder, through its REST API."""

from __future__ import annotations

import json

from stack_tools.airflow_rest import AT_MOST, AirflowRest, AirflowTimeout

from include.ground.settings import Settings
from include.run.airflow_process import USER, password_path
from include.state.process_states import AIRFLOW
from include.state.run_files import read_run_file

__all__ = ["AT_MOST", "AirflowPage", "AirflowTimeout"]


class AirflowPage(AirflowRest):
    """A logged-in user of the Airflow of one state folder, or, with `token`, whoever has it."""

    def __init__(self, settings: Settings, token: str = "") -> None:
        run = read_run_file(settings, AIRFLOW)
        assert run is not None, "no Airflow was started in this state folder"
        password = str(json.loads(password_path(settings).read_text("utf-8"))[USER])
        super().__init__(str(run.extra["page"]), USER, password, token)
        self.settings = settings
