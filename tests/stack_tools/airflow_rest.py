"""Airflow through its REST API, as a user's script uses it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from include.ground.errors import Refused, Transient

ENDED = {"success", "failed"}
# A machine with two slow cores takes minutes for a build, which is a JVM.
AT_MOST = 300.0
ANSWER_AFTER = 10.0
"""Seconds: Airflow takes a task for failed, and requests it again, that is answered before its process has ended."""


class AirflowTimeout(Transient):
    """Airflow did not reach a state in time; `what` names it, with the run's states and logs."""


@dataclass
class AirflowRest:
    """A logged-in user of the Airflow at `address`; the password is sent for the first token."""

    address: str
    user: str
    password: str = field(repr=False)
    token: str = field(default="", repr=False)

    def log_in(self) -> None:
        """Get a token."""
        answer = self._send("POST", "/auth/token", {"username": self.user, "password": self.password})
        self.token = answer["access_token"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call `/api/v2…` and return the JSON; Refused. Waits for a server that restarts."""
        if not self.token:
            self.log_in()
        end = time.monotonic() + 90
        while True:
            try:
                return self._send(method, f"/api/v2{path}", body)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                text = found.read()
        except urllib.error.HTTPError as error:
            answer = error.read().decode(errors="replace")
            what = f"Airflow refused {method} {path}: {error.code} {answer[:1000]}"
            raise Refused(what, code="airflow-refused", status=error.code, answer=answer) from error
        return json.loads(text) if text else None

    def trigger(self, dag: str, conf: dict[str, Any] | None = None, **more: Any) -> str:
        """Trigger a run and return its id."""
        self.call("PATCH", f"/dags/{dag}", {"is_paused": False})
        body = {"logical_date": None, "conf": conf or {}, **more}
        return str(self.call("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"])

    def run(self, dag: str, run: str) -> dict[str, Any]:
        """Return a run."""
        return dict(self.call("GET", f"/dags/{dag}/dagRuns/{run}"))

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return a DAG's runs, oldest first."""
        return list(self.call("GET", f"/dags/{dag}/dagRuns?order_by=run_after&limit=100")["dag_runs"])

    def tasks(self, dag: str, run: str) -> dict[str, dict[str, Any]]:
        """Return a run's task instances by task."""
        found = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task for task in found}

    def states(self, dag: str, run: str) -> dict[str, str]:
        """Return the states of a run's tasks."""
        return {name: str(task["state"]) for name, task in self.tasks(dag, run).items()}

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> str:
        """Return a task's log as text, with the messages of its errors."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}?full_content=true"
        return "\n".join(_lines(self.call("GET", path)["content"]))

    def result(self, dag: str, run: str, task: str) -> Any:
        """Return what a task returned."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return self.call("GET", path)["value"]

    def answer(self, dag: str, run: str, task: str, option: str) -> None:
        """Answer an approval request as a user would: some time after it was shown."""
        time.sleep(ANSWER_AFTER)
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task}/-1/hitlDetails"
        self.call("PATCH", path, {"chosen_options": [option], "params_input": {}})

    def await_run(self, dag: str, run: str, within: float = AT_MOST) -> str:
        """Wait until a run has ended, and return how."""
        self.await_that(lambda: self.run(dag, run)["state"] in ENDED, f"{dag} {run} has ended", dag, run, within)
        return str(self.run(dag, run)["state"])

    def await_task(self, dag: str, run: str, task: str, state: str, within: float = AT_MOST) -> None:
        """Wait until a task is in a state."""
        self.await_that(lambda: self.states(dag, run).get(task) == state, f"{dag}.{task} is {state}", dag, run, within)

    def await_that(self, holds: Callable[[], bool], what: str, dag: str, run: str, within: float = AT_MOST) -> None:
        """Wait until `holds`; AirflowTimeout with the states and logs of the run's tasks."""
        end = time.monotonic() + within
        while not holds():
            if time.monotonic() > end:
                raise AirflowTimeout(f"{within:.0f} s passed before {what}\n{self.story(dag, run)}")
            time.sleep(0.5)

    def story(self, dag: str, run: str) -> str:
        """Return a run's states and the logs of every try of its tasks, for a failure message."""
        parts = [f"{dag} {run}: {self.states(dag, run)}"]
        for name, task in self.tasks(dag, run).items():
            for attempt in range(1, task["try_number"] + 1):
                parts.append(f"--- {name}, try {attempt}\n{self.log(dag, run, name, attempt)[-3000:]}")
        return "\n".join(parts)


def _lines(content: Any) -> Iterator[str]:
    for entry in content if isinstance(content, list) else [content]:
        if isinstance(entry, dict):
            yield str(entry.get("event", ""))
            yield from (f"{e.get('exc_type')}: {e.get('exc_value')}" for e in entry.get("error_detail") or ())
        else:
            yield str(entry)
