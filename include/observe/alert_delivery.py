"""Delivers changes of alerts to a webhook or a command; failed deliveries are retried at the next evaluation."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from include.ground.errors import Terminal, Transient
from include.observe.alert_states import AlertChange, AlertStates, due_changes, with_delivered

WITHIN = 10.0
Deliver = Callable[[AlertChange], None]
"""Raises NotDelivered."""


class NotDelivered(Transient):
    """The receiver did not take a change; it is delivered again at the next evaluation."""

    def __init__(self, receiver: str, why: str) -> None:
        super().__init__(
            f"the alert was not delivered to {receiver}: {why}; it is tried again", "headrace alerts --once"
        )
        self.receiver = receiver


class ReceiverInvalid(Terminal):
    """No change can be delivered to such a receiver."""

    def __init__(self, receiver: str, why: str) -> None:
        super().__init__(
            f"{receiver[:200]!r} is not a receiver of alerts: {why}; nothing was evaluated", "headrace alerts --help"
        )
        self.receiver = receiver


@dataclass(frozen=True)
class Webhook:
    """An address that takes each change as a JSON object by POST."""

    url: str

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ReceiverInvalid(self.url, "it must be an address http://… or https://…")

    def __call__(self, change: AlertChange) -> None:
        """Deliver a change. Raises NotDelivered."""
        body = json.dumps(change.to_json()).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
        place = urlsplit(self.url).hostname or ""
        try:
            with urllib.request.urlopen(request, timeout=WITHIN):
                return
        except urllib.error.HTTPError as error:
            raise NotDelivered(place, f"it answered {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise NotDelivered(place, str(getattr(error, "reason", error))) from error


@dataclass(frozen=True)
class CommandReceiver:
    """A shell command that gets each change as a JSON object on its standard input."""

    command: str

    def __call__(self, change: AlertChange) -> None:
        """Deliver a change. Raises NotDelivered when the command fails or does not end in time."""
        try:
            text = json.dumps(change.to_json()) + "\n"
            done = subprocess.run(
                self.command, shell=True, input=text, text=True, capture_output=True, timeout=WITHIN, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotDelivered(self.command, f"it did not end within {WITHIN:.0f} s") from error
        if done.returncode != 0:
            raise NotDelivered(self.command, f"it ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def deliver_due(
    states: AlertStates, now: datetime, deliver: Deliver | None, show: Callable[[str], None]
) -> AlertStates:
    """Show every due change and deliver it, if there is a receiver; return the states with what it has taken."""
    for key, change in list(due_changes(states, now)):
        show(f"{now:%Y-%m-%d %H:%M:%S} {change.status}: {change.alert}: {change.summary}   ({change.remedy})")
        try:
            if deliver is not None:
                deliver(change)
        except NotDelivered as error:
            show(error.what)
            continue
        states = with_delivered(states, key, change)
    return states
