"""Strict access to a YAML mapping: every key is known, every value has its type, every error names the place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml

from include.errors import Terminal

T = TypeVar("T")
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


class DeclarationRefused(Terminal):
    """A dataset's YAML cannot be used; `place` is file and key, `why` the rule that it breaks."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}; the dataset was not loaded", f"correct {place.split(':')[0]}")
        self.place = place
        self.why = why


class Node:
    """One mapping of a YAML file, read key by key; `finish` refuses the keys that nobody read."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            raise DeclarationRefused(place, f"must be a mapping, is {value!r}")
        self.place = place
        self._left: dict[str, Any] = {str(key): item for key, item in value.items()}

    def take(self, key: str, kind: type[T]) -> T:
        """Return the required value of `key`, which must be a `kind`."""
        if key not in self._left:
            raise DeclarationRefused(f"{self.place}.{key}", "is required and missing")
        return self._checked(key, self._left.pop(key), kind)

    def maybe(self, key: str, kind: type[T], default: T) -> T:
        """Return the value of `key`, which must be a `kind`, or `default` where it is absent."""
        return self._checked(key, self._left.pop(key), kind) if key in self._left else default

    def node(self, key: str) -> Node:
        """Return the required mapping under `key`."""
        return Node(self.take(key, dict), f"{self.place}.{key}")

    def nodes(self, key: str) -> list[Node]:
        """Return the mappings in the list under `key` (none where it is absent)."""
        return [Node(item, f"{self.place}.{key}[{i}]") for i, item in enumerate(self.maybe(key, list, []))]

    def named(self, key: str) -> dict[str, Node]:
        """Return the mapping of names to mappings under `key`."""
        return {name: Node(item, f"{self.place}.{key}.{name}") for name, item in self.take(key, dict).items()}

    def strings(self, key: str) -> tuple[str, ...]:
        """Return the required, non-empty list of strings under `key`."""
        items = self.take(key, list)
        if not items or not all(isinstance(item, str) for item in items):
            raise DeclarationRefused(f"{self.place}.{key}", f"must be a list of strings, is {items!r}")
        return tuple(items)

    def duration(self, key: str) -> timedelta:
        """Return the required duration under `key`, written like `2 days`."""
        return parsed_duration(self.take(key, str), f"{self.place}.{key}")

    def one_of(self, key: str, allowed: Iterable[str]) -> str:
        """Return the required string under `key`, which must be one of `allowed`."""
        value, known = self.take(key, str), sorted(allowed)
        if value not in known:
            raise DeclarationRefused(f"{self.place}.{key}", f"must be one of {', '.join(known)}, is {value!r}")
        return value

    def ignore(self, *keys: str) -> None:
        """Accept keys that are for people and other tools."""
        for key in keys:
            self._left.pop(key, None)

    def finish(self) -> None:
        """Refuse the first key that nobody read."""
        for key in self._left:
            raise DeclarationRefused(f"{self.place}.{key}", "is no known key")

    def peek(self, key: str) -> object:
        """Return what stands under `key`, which stays to be read; None where it is absent."""
        return self._left.get(key)

    def unread(self) -> list[str]:
        """Return the keys not read yet."""
        return list(self._left)

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def _checked(self, key: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise DeclarationRefused(f"{self.place}.{key}", f"must be a {kind.__name__}, is {value!r}")
        return value


def parsed_duration(text: str, place: str) -> timedelta:
    """Return `text`, a count and a unit such as `90 minutes`, as a duration."""
    parts = text.split()
    unit = parts[1].removesuffix("s") if len(parts) == 2 else ""
    if unit not in UNITS or not parts[0].isdigit():
        raise DeclarationRefused(place, f"must be a duration like '2 days', is {text!r}")
    return timedelta(seconds=int(parts[0]) * UNITS[unit])


def load_yaml(path: Path) -> Node:
    """Return the mapping in a YAML file; DeclarationRefused when it is missing or no YAML."""
    try:
        return Node(yaml.safe_load(path.read_text(encoding="utf-8")), f"{path}: ")
    except FileNotFoundError as error:
        raise DeclarationRefused(str(path), "is missing") from error
    except yaml.YAMLError as error:
        raise DeclarationRefused(str(path), f"is no YAML ({error})") from error
