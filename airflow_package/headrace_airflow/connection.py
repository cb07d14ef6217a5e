"""Requests to Headrace's API by an Airflow connection: type HTTP, host, port, the token as password.

Guarantee: an error that a retry cannot help fails the task at once; after an outage it is tried again.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from airflow.sdk import BaseHook, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

DEFAULT_CONNECTION = "headrace_default"
TIMEOUT = 60.0


class Refused(AirflowFailException):
    """The server refused a request; `answer` is its reply, `code` names the error."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(answer.get("error", answer)))
        self.answer = answer
        self.code = str(answer.get("code", ""))


class NotKnown(Refused):
    """The server does not know what was requested."""


def origin(context: Context) -> str:
    """Return the run's origin, `dag/run`: the same in a retry and in a cleared task."""
    run = context["dag_run"]
    return f"{run.dag_id}/{run.run_id}"


class HeadraceConnection:
    """Requests to the server that an Airflow connection names."""

    def __init__(self, connection: str = DEFAULT_CONNECTION, within: float = TIMEOUT) -> None:
        found = BaseHook.get_connection(connection)
        port = f":{found.port}" if found.port else ""
        self.page = f"{found.schema or 'http'}://{found.host}{port}"
        self.address = f"{self.page}/api/v1"
        self._token = found.password or ""
        self._within = within

    def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, **query: str | float
    ) -> dict[str, Any]:
        """Return the answer to a request. Raises Refused, NotKnown; AirflowException when a retry may help."""
        address = f"{self.address}/{urllib.parse.quote(path)}{'?' if query else ''}{urllib.parse.urlencode(query)}"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._within) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refusal(error, f"{method} {path}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AirflowException(f"Headrace at {self.address} does not answer: {error}") from None
        return dict(found)


def _refusal(error: urllib.error.HTTPError, request: str) -> AirflowException:
    try:
        answer = dict(json.load(error))
    except (ValueError, TypeError):
        answer = {"error": f"{request}: {error}", "is_terminal": error.code < 500}
    if not answer.get("is_terminal", True):
        return AirflowException(str(answer.get("error")))
    return NotKnown(answer) if error.code == 404 else Refused(answer)
