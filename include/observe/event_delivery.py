"""Delivers events by the transports of the OpenLineage library: HTTP, or lines appended to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from openlineage.client.event_v2 import JobEvent, RunEvent
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider
from requests.exceptions import HTTPError, RequestException

from include.ground.errors import Terminal, Transient
from include.ground.password_file import read_password
from include.ground.secret_masking import mask_secrets
from include.ground.settings import Settings

WITHIN = 10.0
ENDPOINT = "api/v1/lineage"
NOT_AN_EVENT = (400, 413, 422)
"""Status codes with which a receiver rejects the event itself for good."""
NO_RETRY = {"total": 0, "read": 0, "connect": 0}
Event = RunEvent | JobEvent
Deliver = Callable[[Event], None]
"""Raises ReceiverUnavailable, EventRefused."""


class ReceiverUnavailable(Transient):
    """The receiver does not accept events now; they are sent later, in the same order."""

    def __init__(self, receiver: str, why: str) -> None:
        super().__init__(
            f"OpenLineage events are not delivered: {receiver}: {why}; they are sent later, and nothing else waits",
            "check HEADRACE_OPENLINEAGE_URL, _FILE and _KEY_FILE, then: headrace openlineage --once",
        )
        self.receiver = receiver


class EventRefused(Terminal):
    """The receiver rejects an event as invalid; it is skipped."""

    def __init__(self, receiver: str, event: Event, why: str) -> None:
        name = event.job.name
        super().__init__(f"{receiver} refuses an event of job {name}: {why}; it was left out, the others follow")
        self.receiver, self.event = receiver, event


class NoReceiver(Terminal):
    """No setting names a receiver of events."""

    def __init__(self) -> None:
        super().__init__(
            "no receiver of OpenLineage events is set; nothing was sent",
            "HEADRACE_OPENLINEAGE_URL=http://…, or HEADRACE_OPENLINEAGE_FILE=events.jsonl; "
            "headrace openlineage --export FILE needs none",
        )


@dataclass(frozen=True)
class HttpReceiver:
    """Posts events to a receiver."""

    transport: HttpTransport
    name: str

    def __call__(self, event: Event) -> None:
        """Deliver an event. Raises ReceiverUnavailable, EventRefused."""
        try:
            self.transport.emit(event)
        except HTTPError as error:
            code = error.response.status_code if error.response is not None else 0
            if code in NOT_AN_EVENT:
                raise EventRefused(self.name, event, f"HTTP {code}") from error
            raise ReceiverUnavailable(self.name, f"HTTP {code}") from error
        except RequestException as error:
            raise ReceiverUnavailable(self.name, mask_secrets(_cause(error))) from error


@dataclass(frozen=True)
class FileReceiver:
    """Appends events to a file, one per line."""

    path: Path

    def __call__(self, event: Event) -> None:
        """Append an event; a line that was cut off, as by a full disk, is ended first. Raises ReceiverUnavailable."""
        try:
            end_cut_line(self.path)
            FileTransport(FileConfig(str(self.path), append=True)).emit(event)
        except (OSError, RuntimeError) as error:
            raise ReceiverUnavailable(str(self.path), str(error)) from error


def end_cut_line(path: Path) -> None:
    """End the last line of a file, if there is one without its end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def receiver(settings: Settings) -> Deliver:
    """Return what delivers events. Raises NoReceiver, PasswordUnreadable."""
    if settings.openlineage_file:
        return FileReceiver(settings.openlineage_file.expanduser().absolute())
    if not settings.openlineage_url:
        raise NoReceiver
    key_file, auth = settings.openlineage_key_file, TokenProvider({})
    if key_file is not None:
        auth = ApiKeyTokenProvider({"apiKey": read_password("HEADRACE_OPENLINEAGE_KEY_FILE", key_file)})
    url, endpoint = split_address(settings.openlineage_url)
    config = HttpConfig(url=url, endpoint=endpoint, timeout=WITHIN, auth=auth, retry=NO_RETRY)
    return HttpReceiver(HttpTransport(config), receiver_name(settings))


def receiver_name(settings: Settings) -> str:
    """Return the address or file of the receiver, without secrets."""
    return mask_secrets(settings.openlineage_url) or str(settings.openlineage_file)


def split_address(address: str) -> tuple[str, str]:
    """Return the server and the path of a receiver: Marquez's path, unless the address ends in one of its own."""
    parts = urlsplit(address)
    path = parts.path.strip("/")
    own = path.rpartition("/")[2] == "lineage"
    endpoint = path if own else "/".join(filter(None, (path, ENDPOINT)))
    return f"{parts.scheme}://{parts.netloc}/", f"{endpoint}?{parts.query}" if parts.query else endpoint


def _cause(error: BaseException) -> str:
    """Return the innermost reason of an error of the HTTP library, in a line."""
    reason = error.args[0] if error.args else error
    inner = getattr(reason, "reason", reason)
    return str(inner).splitlines()[0] if str(inner) else type(error).__name__
