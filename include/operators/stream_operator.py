"""A run of `stream__<dataset>`: while it lasts, the stream is wanted and watched.

Reads: the stream's health.  Writes: that the stream is wanted.
Guarantee: the stream is a process of the runner's: what happens to Airflow does not happen to it.
After a crash: the run is still deferred; the triggerer looks again. A retry says once more that the stream is wanted.
Does not: start or stop a process.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException

from include.operators.run_context import airflow_errors, origin, run_params
from include.operators.triggers import StreamWatch
from include.settings import load_settings


class RunStream(BaseOperator):
    """Say that the stream is wanted, then watch it, deferred, until it fails or is let go."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> None:
        """Want the stream; ParamsRefused, DatasetUnknown."""
        from include.operators.run_parameters import StreamParameters, validated_params
        from include.state.desired_streams import request_stream

        with airflow_errors():
            asked = validated_params(StreamParameters, run_params(context))
            said = request_stream(load_settings(), self.dataset, origin(context))
        self.log.info("%s is wanted", self.dataset)
        trigger = StreamWatch(
            self.dataset, origin(context), said.since.isoformat(), asked.lag_seconds, asked.grace_seconds
        )
        self.defer(trigger=trigger, method_name="ended")

    def ended(self, context: Context, event: dict[str, Any]) -> str:
        """The watch is over: the run fails unless somebody let the stream go."""
        from include.operators.service_levels import RELEASED

        if event["outcome"] != RELEASED:
            raise AirflowFailException(event["why"])
        return str(event["why"])
