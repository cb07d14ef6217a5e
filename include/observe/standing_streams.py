"""Streams that stand still: what is published may balance, and nothing more will come."""

from __future__ import annotations

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.observe.process_status import observe_stream
from include.read.publication import find_publication
from include.state.process_states import ProcessState

STANDING = {
    ProcessState.FAILED: "has failed and is not started again",
    ProcessState.HALTED: "is halted: what it publishes fails and is retried",
}


def standing_sentence(settings: Settings, dataset: str, waiting: int) -> str:
    """Return that a dataset's stream stands still, since when and why; "" when it does not.

    One that was stopped on request does not: it is where it is meant to be. `waiting`: offsets that are not published.
    """
    process = observe_stream(settings, dataset)
    how = STANDING.get(process.state)
    if how is None:
        return ""
    try:
        publication = find_publication(settings, dataset)
    except HeadraceError:
        publication = None
    since = f"nothing was published since {publication.published_at:%Y-%m-%d %H:%M:%S} UTC" if publication else ""
    records = f"{waiting:,} records wait in Kafka" if waiting else ""
    facts = ", ".join(filter(None, [since or "nothing was published yet", records]))
    why = process.detail or process.last_error
    return f"stream {dataset} {how}; {facts}" + (f": {why}" if why else "")
