"""What the derived datasets of a joint plan have published at one state of their sources, to be compared with.

Reads: publications. Does not: hold up their drivers; a publication that is pinned may be replaced meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.ground.settings import Settings
from include.read.publication import Publication, publication_json, read_publication

PATIENCE = 30.0
"""Seconds to wait for the derived datasets to follow; stopped ones do not, and are compared as they are."""
POLL = 0.05


@dataclass(frozen=True)
class Pin:
    """A derived dataset's publication.

    `batch_of_source`: the batch of the plan's own dataset that it has used, -1 when it reads none of its tables;
    `built_over`: the new tables of that dataset at this batch.
    """

    published: Publication
    batch_of_source: int
    built_over: Publication | None = None

    def over(self, built: Publication) -> Pin:
        """Return the pin with the tables that the new release is computed over."""
        return self if self.batch_of_source < 0 else replace(self, built_over=built)

    def to_json(self) -> dict[str, Any]:
        """Return the pin as a job reports it."""
        over = {} if self.built_over is None else {"over": publication_json(self.built_over)}
        return {"published": publication_json(self.published), **over}


def pin_members(
    settings: Settings,
    source: Publication,
    members: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, Pin]:
    """Return the publications of the members, in their order, once they share one state of the sources.

    Each has used at least the batch of `source`, and of the other members what is pinned; or PATIENCE is over.
    """
    end = clock() + PATIENCE
    while True:
        # The readers first: what they have used is then at most as new as what is read after them.
        found = {name: read_publication(settings, name) for name in reversed(members)}
        if clock() >= end or _is_one_state(source, found):
            return {name: Pin(found[name], _batch_used(found[name], source)) for name in members}
        wait(POLL)


def _is_one_state(source: Publication, members: Mapping[str, Publication]) -> bool:
    used = [_batch_used(each, source) for each in members.values()]
    if any(0 <= batch < source.batch for batch in used):
        return False
    return all(_batch_used(each, other) in (-1, other.batch) for each in members.values() for other in members.values())


def _batch_used(reader: Publication, source: Publication) -> int:
    """Return the last batch of a dataset's tables that a derived dataset has used, -1 when it reads none of them."""
    return max((reader.sources[name].batch for name in source.tables if name in reader.sources), default=-1)
