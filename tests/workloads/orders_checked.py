"""Which orders of arrival an interrupted command has compared, so that the same command continues with the next one.

Reads / Writes: a file of the group in `workloads/`, removed when all are compared: a command after that begins anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from include.ground.settings import Settings
from include.state.json_file import JsonFile


@dataclass(frozen=True)
class OrdersChecked:
    """By order the datasets whose gold had the published bytes; `published` is a digest of these."""

    published: str
    equal: Mapping[int, Sequence[str]] = field(default_factory=dict)


def orders_file(settings: Settings, group: Sequence[str]) -> JsonFile[OrdersChecked]:
    """Return the file of a group of workloads."""
    path = settings.state / "workloads" / f"{group[0]}.orders.json"
    return JsonFile(path, OrdersChecked, remedy=f'rm "{path}"   (all orders are compared again)')


def orders_so_far(settings: Settings, group: Sequence[str], gold: Mapping[str, Mapping[str, bytes]]) -> OrdersChecked:
    """Return what an interrupted command has compared with these bytes of gold; nothing when gold was another."""
    digest = hashlib.sha256()
    for dataset, tables in sorted(gold.items()):
        for table, content in sorted(tables.items()):
            digest.update(f"{dataset} {table} {len(content)} ".encode() + content)
    found = orders_file(settings, group).read()
    fresh = OrdersChecked(digest.hexdigest())
    return found if found is not None and found.published == fresh.published else fresh
