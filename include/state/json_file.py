"""One small JSON file of the state folder: typed by pydantic, replaced atomically, with one error for all of them.

    def desired_file(settings: Settings, dataset: str) -> JsonFile[DesiredStream]:
        path = desired_path(settings, dataset)
        return JsonFile(path, DesiredStream, former_keys={"wanted": "desired"}, remedy="headrace up")

    desired_file(settings, "flights").read()         # DesiredStream, or None without a file; StateFileUnreadable
    desired_file(settings, "flights").write(value)   # atomic; survives a power cut unless durable=False

The model is any type that pydantic can validate: a frozen dataclass, a BaseModel, `dict[str, int]`, `list[str]`.
Unknown keys are ignored unless the model forbids them: an older version may read what a newer one wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal, mask_secrets, mask_value

T = TypeVar("T")


class StateFileUnreadable(Terminal):
    """A file of the state folder is not the JSON that its model requires.

    `path` is the file, `key` the first wrong key ("" for the whole file), `content` its JSON object if it is one.
    """

    def __init__(self, path: Path, why: str, remedy: str, key: str = "", content: object = None) -> None:
        super().__init__(f"{path} cannot be read: {why}", remedy)
        self.path, self.key = path, key
        self.content: Mapping[str, Any] = content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """A JSON file at `path` that holds one `model`.

    `durable` writes are forced to disk. `former_keys` maps keys of earlier versions to today's; `upgrade` converts a
    whole object of an earlier version. `consequence` says what the reader does with an unreadable file, `remedy` what
    the user can do.
    """

    path: Path
    model: type[T]
    remedy: str = ""
    consequence: str = "nothing was changed"
    durable: bool = True
    former_keys: Mapping[str, str] = field(default_factory=dict)
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] = lambda content: content

    def read(self) -> T | None:
        """Return the content, None without a file. Raises StateFileUnreadable for anything else."""
        try:
            text = self.path.read_text("utf-8")
            content = self._upgraded(json.loads(text))
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise self._unreadable(f"line {error.lineno}: not JSON ({error.msg})") from error
        except (ValueError, OSError) as error:
            raise self._unreadable(mask_secrets(str(error))) from error
        try:
            return adapter(self.model).validate_json(json.dumps(content), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            found = "" if first["type"] == "missing" else f" (found: {mask_value(first['input'], key)!r:.80})"
            raise self._unreadable(f"{f'key {key}: ' if key else ''}{first['msg']}{found}", key, content) from error

    def read_if_valid(self) -> T | None:
        """Return the content, None without a readable file: for status, which must not fail on one broken file."""
        try:
            return self.read()
        except StateFileUnreadable:
            return None

    def write(self, value: T) -> None:
        """Replace the file: a reader sees the old or the new content. Raises OSError; the old content stays then."""
        text = adapter(self.model).dump_json(value, indent=1).decode()
        write_atomically(self.path, text, durable=self.durable)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _upgraded(self, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return self.upgrade({self.former_keys.get(key, key): value for key, value in content.items()})

    def _unreadable(self, why: str, key: str = "", content: object = None) -> StateFileUnreadable:
        return StateFileUnreadable(self.path, f"{why}; {self.consequence}", self.remedy, key, content)


# Compiled once a process: building a validator takes longer than reading a file.
_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


def adapter(model: type[T]) -> TypeAdapter[T]:
    """Return pydantic's validator of a model."""
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]
