"""What is wanted: one small file per dataset with the last word on its stream, which the runner makes true.

Guarantee: replaced whole, the last word counts, whoever said it; saying it twice is saying it once.
Does not: start or stop anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from include.catalog.dataset import DatasetUnknown, dataset_names
from include.errors import Terminal
from include.paths import desired_path
from include.settings import Settings
from include.state.atomic_files import write_atomically


class DesiredStreamUnreadable(Terminal):
    """A file of what is wanted is none; it is only ever replaced whole, so somebody edited it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} does not say what is wanted ({why}); its stream was left as it is",
            "headrace up   (or: headrace down)   says it anew",
        )
        self.path = path


@dataclass(frozen=True)
class DesiredStream:
    """The last word on a dataset's stream: `wanted` or not any more, `by` whom, `since` when (UTC).

    Saying again that it is wanted renews `since`: a stream that the runner gave up is tried again then.
    """

    dataset: str
    by: str
    since: datetime
    desired: bool = True


def request_stream(settings: Settings, dataset: str, by: str, now: datetime | None = None) -> DesiredStream:
    """Say that the dataset's stream is to run; DatasetUnknown before anything is written."""
    if dataset not in (known := dataset_names(settings)):
        raise DatasetUnknown(dataset, known)
    return _say(settings, DesiredStream(dataset, by, now or datetime.now(UTC)))


def release_stream(settings: Settings, dataset: str, by: str, now: datetime | None = None) -> None:
    """Say that the dataset's stream is to drain and stay away; nothing is written when it is not wanted already."""
    try:
        before = desired_stream(settings, dataset)
    except DesiredStreamUnreadable:
        pass
    else:
        if before is None or not before.desired:
            return
    _say(settings, DesiredStream(dataset, by, now or datetime.now(UTC), desired=False))


def wanted(settings: Settings) -> dict[str, DesiredStream]:
    """Return the wanted streams by dataset, sorted; WantedUnreadable."""
    return {name: said for name, said in desired_streams(settings).items() if said.desired}


def desired_streams(settings: Settings) -> dict[str, DesiredStream]:
    """Return the last word on every dataset that was ever spoken of, wanted or not; WantedUnreadable."""
    found = {name: desired_stream(settings, name) for name in recorded_datasets(settings)}
    return {name: said for name, said in found.items() if said is not None}


def recorded_datasets(settings: Settings) -> list[str]:
    """Return the datasets on which there is a last word, readable or not, sorted."""
    return sorted(path.stem for path in desired_path(settings, "*").parent.glob("*.json"))


def last_change(words: Mapping[str, DesiredStream]) -> datetime:
    """Return when anything was said last: what the broker is wanted for, which runs as long as the runner does."""
    return max((said.since for said in words.values()), default=datetime.min.replace(tzinfo=UTC))


def desired_stream(settings: Settings, dataset: str) -> DesiredStream | None:
    """Return the last word on a dataset, None before the first; WantedUnreadable."""
    path = desired_path(settings, dataset)
    try:
        found = json.loads(path.read_text("utf-8"))
        return _wanted_of(found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DesiredStreamUnreadable(path, repr(error)) from error


def _wanted_of(found: Mapping[str, object]) -> DesiredStream:
    since = datetime.fromisoformat(str(found["since"]))
    return DesiredStream(str(found["dataset"]), str(found["by"]), since, found["wanted"] is True)


def _say(settings: Settings, said: DesiredStream) -> DesiredStream:
    record = {"dataset": said.dataset, "by": said.by, "since": said.since.isoformat(), "wanted": said.desired}
    write_atomically(desired_path(settings, said.dataset), json.dumps(record))
    return said
