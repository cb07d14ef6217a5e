"""Airflow's operators before the console's real API, without a socket and without Airflow's parts."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from airflow.sdk.exceptions import TaskDeferred
from console_client import console_client

from include.ground.settings import Settings
from include.run.airflow_process import own_api_token


@contextmanager
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The connection `headrace_default` leads to a console of these settings."""
    token = own_api_token(settings)
    connection = {"conn_type": "http", "host": "localhost", "port": 1, "password": token}
    monkeypatch.setenv("AIRFLOW_CONN_HEADRACE_DEFAULT", json.dumps(connection))
    with console_client(settings) as client:

        def urlopen(request: Any, timeout: float) -> io.BytesIO:
            url = urlsplit(request.full_url)
            address = f"{url.path}?{url.query}" if url.query else url.path
            answer = client.request(request.method, address, content=request.data, headers=dict(request.header_items()))
            if answer.status_code >= 400:
                body = io.BytesIO(answer.content)
                raise urllib.error.HTTPError(request.full_url, answer.status_code, "refused", answer.headers, body)
            return io.BytesIO(answer.content)

        monkeypatch.setattr("headrace_airflow.triggers.POLL_SECONDS", 0.02)
        monkeypatch.setattr("headrace_airflow.triggers.SETTLE_SECONDS", 0.02)
        monkeypatch.setattr("urllib.request.urlopen", urlopen)
        yield


def run_context(
    origin: str, params: dict[str, Any] | None = None, conf: dict[str, Any] | None = None, **run: Any
) -> Any:
    """Return the part of a run's context that the operators read."""
    dag, _, name = origin.partition("/")
    facts = {"dag_id": dag, "run_id": name, "conf": conf, "partition_key": None, "partition_date": None}
    task = SimpleNamespace(task_id="task", try_number=1, pushed={}, pulled={})
    task.xcom_push = task.pushed.__setitem__
    task.xcom_pull = lambda task_ids: task.pulled.get(task_ids)
    dag_run = SimpleNamespace(**facts | {"triggering_user_name": "ann"} | run)
    return {"params": params or {}, "dag_run": dag_run, "ti": task, "exception": ValueError("why")}


def executed(operator: Any, context: Any) -> Any:
    """Execute a task as Airflow does, with what it waits for."""
    try:
        return operator.execute(context)
    except TaskDeferred as deferred:
        return getattr(operator, deferred.method_name)(context, fired(deferred.trigger))


def fired(trigger: Any) -> Any:
    """Return the payload of a trigger's event."""

    async def first() -> Any:
        return (await asyncio.wait_for(anext(trigger.run()), 30)).payload

    return asyncio.run(first())
