"""Declarations as YAML files: the line of each key, validation by pydantic, one refusal that lists all problems."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from include.ground.errors import Terminal

T = TypeVar("T")
Key = tuple[str | int, ...]
"""The path of a value in a file: names and list positions, outermost first."""
Finding = tuple[Key, str]
"""A key and what is wrong with its value."""
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
DURATION = re.compile(r"([0-9]+) +(second|minute|hour|day)s?")
LONGEST_DURATION = timedelta(days=36_500)
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
NAME_RULE = "must be lower-case letters, digits and _, begin with a letter, and have at most 63 characters"
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MOST_VALUES = 100_000
UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
PLAIN_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_shown = Repr()
_shown.maxstring = _shown.maxother = 80


@dataclass(frozen=True, order=True)
class Problem:
    """What is wrong with one key of a file; `line` counts from 1, `key` is empty for the file as a whole."""

    file: Path
    line: int
    key: str
    why: str

    def __str__(self) -> str:
        return ": ".join(filter(None, [f"{self.file}:{self.line}", self.key, self.why]))


class DeclarationRefused(Terminal):
    """Files of a dataset cannot be used; `problems` are all that were found in them, by file and line."""

    def __init__(
        self, problems: Iterable[Problem], consequence: str = "the dataset was not loaded", remedy: str = ""
    ) -> None:
        self.problems = tuple(sorted(set(problems)))
        files = ", ".join(dict.fromkeys(str(problem.file) for problem in self.problems))
        count = f"{len(self.problems)} problems:\n  " if len(self.problems) > 1 else ""
        found = "\n  ".join(map(str, self.problems))
        super().__init__(f"{count}{found}\n{consequence}", remedy or f"correct {files}; headrace contract check")


class InvalidValue(ValueError):
    """A value that cannot be used; `key` is its place below the value that is being read."""

    def __init__(self, why: str, *key: str | int) -> None:
        super().__init__(why)
        self.why, self.key = why, key


@contextmanager
def inside(*key: str | int) -> Iterator[None]:
    """Prefix the key of an InvalidValue value."""
    try:
        yield
    except InvalidValue as error:
        error.key = (*key, *error.key)
        raise


CONFIG = ConfigDict(extra="forbid", validate_by_name=True, validate_by_alias=True)
"""Of dataclasses that are declared: unknown keys are errors."""


class Declared(BaseModel):
    """A mapping of a YAML file: types are not converted, unknown keys are errors, `ignored` keys are for people."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {key: v for key, v in value.items() if key not in cls.ignored}
        known = {field.alias or name for name, field in cls.model_fields.items()}
        empty = next((key for key, v in kept.items() if v is None and key in known), None)
        if empty is not None and (info.context or {}).get("strict"):
            raise InvalidValue("has no value: write one, or leave the key out", empty)
        return kept


class Document:
    """A YAML file that is being read: its value, the line of each key, and the problems found so far.

    `strict` is for a folder that is being declared. The snapshot of a release is read without: it was accepted
    once, perhaps by an earlier version with fewer rules, and must stay readable.
    """

    def __init__(self, path: Path, *, strict: bool = True) -> None:
        self.path, self.strict = path, strict
        self.problems: list[Problem] = []
        self._lines: dict[Key, int] = {}
        self._values = 0
        self.value = self._read()

    def problem(self, key: Key, why: str) -> Problem:
        return Problem(self.path, self.line(key), spelled(key), why)

    def refuse(self, key: Key, why: str) -> None:
        """Note a problem with the value of `key`."""
        self.problems.append(self.problem(key, why))

    @contextmanager
    def problem_at(self, *key: str | int) -> Iterator[None]:
        """Note an InvalidValue value below `key` as a problem, and continue after the block."""
        try:
            yield
        except InvalidValue as error:
            self.refuse((*key, *error.key), error.why)

    def check(self, findings: Iterable[Finding]) -> None:
        """Note findings that apply only to a folder that is being declared."""
        if self.strict:
            for key, why in findings:
                self.refuse(key, why)

    def line(self, key: Key) -> int:
        """Return the line of a key, or of the nearest mapping around it."""
        while key and key not in self._lines:
            key = key[:-1]
        return self._lines.get(key, 1)

    def parsed(self, model: type[T], **context: Any) -> T | None:
        """Return the file's value as a model; None when it is none, and each reason is a problem."""
        if self.problems and self.value is None:
            return None
        adapter, context = _adapter(cast(Any, model)), {"strict": self.strict, **context}
        try:
            return cast(T, adapter.validate_python(self.value, context=context))
        except ValidationError as error:
            found = error.errors(include_url=False)
        for each in found:
            self.refuse(*finding(each, self.value, model))
        if {each["type"] for each in found} <= UNKNOWN:
            # The rest of the file is checked too: all problems are shown at once.
            with suppress(ValidationError):
                known = _without(self.value, {_key_in_file(each["loc"], self.value) for each in found})
                return cast(T, adapter.validate_python(known, context=context))
        return None

    def _read(self) -> Any:
        try:
            loader = Loader(self.path.read_bytes().decode("utf-8"))
            node = loader.get_single_node()
            if node is None:
                return {}
            self._index(node, ())
            return _with_text_keys(loader.construct_document(node))
        except FileNotFoundError:
            self.refuse((), "is missing")
        except UnicodeDecodeError as error:
            self._lines[()] = error.object[: error.start].count(b"\n") + 1
            self.refuse((), f"is not UTF-8: byte 0x{error.object[error.start]:02x}")
        except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
            mark = getattr(error, "problem_mark", None)
            self._lines[()] = mark.line + 1 if mark else 1
            self.refuse((), f"is not YAML: {getattr(error, 'problem', None) or error}")
        return None

    def _index(self, node: yaml.Node, key: Key) -> None:
        """Note the line of each key below; a key that occurs twice in one mapping is a problem."""
        self._lines.setdefault(key, node.start_mark.line + 1)
        self._values += 1
        if self._values > MOST_VALUES:
            raise yaml.YAMLError(f"it holds more than {MOST_VALUES:,} values, aliases counted at each use")
        if node.tag == "tag:yaml.org,2002:int" and not PLAIN_INTEGER.fullmatch(node.value):
            self.check([(key, f"must be written in decimal digits, is {node.value}")])
        if isinstance(node, yaml.SequenceNode):
            for n, item in enumerate(node.value):
                self._index(item, (*key, n))
        if not isinstance(node, yaml.MappingNode):
            return
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a text", problem_mark=name.start_mark)
            below = (*key, str(name.value))
            first = self._lines.get(below)
            if first is not None:
                self._lines = {known: at for known, at in self._lines.items() if known[: len(below)] != below}
            self._lines[below] = name.start_mark.line + 1
            if first is not None:
                self.check([(below, f"occurs twice: in lines {first} and {self.line(below)}")])
            if name.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                self.check([(below, "must be a text: write the key in quotes")])
            self._index(value, below)


def raise_problems(*documents: Document) -> None:
    """Raise DeclarationRefused when any of the documents has a problem."""
    if problems := [problem for document in documents for problem in document.problems]:
        raise DeclarationRefused(problems)


def spelled(key: Key) -> str:
    """Return a key as people write it: `schema[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def shown(value: object) -> str:
    """Return a value as a message shows it, shortened."""
    return _shown.repr(value)


def parsed_duration(value: object) -> timedelta:
    """Return a count and a unit such as `90 minutes` as a duration; ValueError."""
    if isinstance(value, timedelta):
        return value
    match = DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be a count and second, minute, hour or day, like '2 days', is {shown(value)}")
    seconds = int(match[1]) * SECONDS[match[2]] if len(match[1]) <= 12 else None
    if seconds is None or seconds > LONGEST_DURATION.total_seconds():
        raise ValueError(f"must be at most {LONGEST_DURATION.days} days, is {shown(value)}")
    return timedelta(seconds=seconds)


def accepted_names(names: Iterable[tuple[Key, str]]) -> Iterator[Finding]:
    """Yield a finding for each name that no column or table may have, and for each that occurs twice."""
    seen: set[str] = set()
    for key, name in names:
        if not NAME.fullmatch(name):
            yield key, f"{NAME_RULE}, is {shown(name)}"
        if name in seen:
            yield key, f"{name!r} occurs twice"
        seen.add(name)


Duration = Annotated[timedelta, BeforeValidator(parsed_duration)]


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def finding(error: Mapping[str, Any], document: Any, model: object) -> Finding:
    """Return an error of pydantic with its key in `document`, which was read as `model`."""
    key, kind = _key_in_file(error["loc"], document), error["type"]
    if kind == "missing":
        return (*key, error["loc"][-1]), "is required and missing"
    if kind in UNKNOWN:
        return key, f"is not a known key; known: {', '.join(_known_keys(model, error['loc'][:-1]))}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag, allowed = error["ctx"]["discriminator"].strip("'"), error["ctx"].get("expected_tags", "")
        return (*key, tag), f"must be {allowed}, is {shown(error['ctx']['tag'])}" if allowed else "is required"
    if kind == "value_error":
        return (*key, *getattr(error["ctx"]["error"], "key", ())), str(error["ctx"]["error"])
    if kind in ("model_type", "dataclass_type", "dict_type"):
        return key, f"must be a mapping of keys, is {shown(error['input'])}"
    if kind == "too_short":
        return key, f"must have at least {error['ctx']['min_length']} item, is {shown(error['input'])}"
    # YAML reads `no`, `on` and `1` as what they look like.
    quoted = "; write it in quotes" if kind == "string_type" and isinstance(error["input"], bool | int | float) else ""
    return key, f"{error['msg'].replace('Input should', 'must', 1)}, is {shown(error['input'])}{quoted}"


def _without(value: Any, keys: Collection[Key], at: Key = ()) -> Any:
    if isinstance(value, dict):
        return {name: _without(v, keys, (*at, name)) for name, v in value.items() if (*at, name) not in keys}
    return [_without(v, keys, (*at, n)) for n, v in enumerate(value)] if isinstance(value, list) else value


def _key_in_file(loc: Sequence[str | int], value: Any) -> Key:
    """Leave out what pydantic adds to a location, and turn positions in a mapping into its keys."""
    key: list[str | int] = []
    for part in loc:
        if isinstance(value, dict) and isinstance(part, int) and part < len(value):
            part = list(value)[part]
        is_there = isinstance(value, dict) and part in value
        if is_there or (isinstance(value, list) and isinstance(part, int) and part < len(value)):
            value = value[part]
            key.append(part)
    return tuple(key)


def _known_keys(model: object, loc: Sequence[str | int]) -> list[str]:
    models = list(_models(model))
    for part in loc:
        fields = [f for each in models for name, f in _fields(each).items() if part in (name, f.alias)]
        tagged = [each for each in models if part in _tags(each)]
        models = [found for field in fields for found in _models(field.annotation)] or tagged or models
    return sorted({field.alias or name for each in models for name, field in _fields(each).items()})


def _fields(model: Any) -> Mapping[str, Any]:
    return dict(model.__pydantic_fields__)


def _tags(model: Any) -> tuple[Any, ...]:
    annotations = (field.annotation for field in _fields(model).values())
    return tuple(tag for each in annotations if get_origin(each) is Literal for tag in get_args(each))


def _models(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def zoned_time(value: object, *key: str | int) -> datetime:
    """Return an ISO 8601 time with its zone, in UTC; raises InvalidValue when it has no zone, or is none."""
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    else:
        raise InvalidValue(f"must have a zone, like 2013-01-01T00:00:00Z, is {shown(str(value))}", *key)
    raise InvalidValue(f"must be a time like 2013-01-01T00:00:00Z, is {shown(value)}", *key)
