"""A run of `stream__<dataset>`: while it lasts, the stream is requested and watched.

Reads: the stream's health.  Writes: the request for the stream.
Guarantee: the stream is a process of the runner: a failure of Airflow does not affect it.
After a crash: the run is still deferred; the triggerer watches again. A retry repeats the request.
Does not: start or stop a process.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from include.airflow.run_context import airflow_errors, origin, run_params
from include.airflow.triggers import StreamWatch
from include.ground.settings import load_settings


class RunStream(BaseOperator):
    """Request the stream, then watch it, deferred, until it fails or is released."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> None:
        """Request the stream. Raises ParamsRefused, DatasetUnknown."""
        from include.airflow.run_parameters import StreamParameters, validated_params
        from include.state.streams import request_stream

        with airflow_errors():
            level = validated_params(StreamParameters, run_params(context))
            desired = request_stream(load_settings(), self.dataset, origin(context))
        self.log.info("%s: the stream is requested", self.dataset)
        trigger = StreamWatch(
            self.dataset, origin(context), desired.since.isoformat(), level.lag_seconds, level.grace_seconds
        )
        self.defer(trigger=trigger, method_name="ended")

    def ended(self, context: Context, event: dict[str, Any]) -> str:
        """End the run: it fails unless the stream was released."""
        from include.observe.health import RELEASED

        if event["outcome"] != RELEASED:
            raise AirflowFailException(event["why"])
        return str(event["why"])
