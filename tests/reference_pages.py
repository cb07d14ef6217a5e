"""Pages made from the code: docs/reference, and the index of decisions. `make reference` writes them.

A test compares them with the code (`tests/architecture/test_generated_pages.py`), so none is edited by hand.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
import yaml
from fastapi.routing import APIRoute
from stack_tools.chart_values import generated_schema

from include.cli.main import app
from include.declare import analyses, contract_file, derived_dataset, pipeline
from include.ground.settings import CLONE, list_settings
from include.ground.settings_profiles import KNOBS, PURPOSES
from include.observe.alerts import CONDITIONS
from include.observe.metrics import FIGURES
from include.serve.api import routes

MADE = "*Made from the code by `make reference`.*"
DOCS = CLONE / "docs"
WRITTEN = {
    "parsed_measures": "measures by name",
    "pairs": "texts by name",
    "_query_text": "path of a .sql file",
}
"""How a value is written that a reader of its own parses, by the name of that reader."""
KINDS = {str: "text", int: "integer", float: "number", bool: "yes or no", timedelta: "duration, like `6 hours`"}


def generated_pages() -> dict[Path, str]:
    """Return the text of each generated page, and of the chart's schema, by its file."""
    reference = {
        "cli": _command_line(),
        "settings": _settings(),
        "yaml-keys": _yaml_keys(),
        "metrics": _metrics(),
        "alerts": _alerts(),
        "http-api": _http_api(),
        "errors": _errors(),
    }
    pages = {DOCS / "reference" / f"{name}.md": text for name, text in reference.items()}
    return pages | {DOCS / "explanation" / "decisions.md": _decisions()} | generated_schema()


def _page(title: str, about: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", about, *parts, MADE]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def _command_line() -> str:
    parts = list(_commands(typer.main.get_command(app), "headrace"))
    return _page("Command line", "Every command with its options, as `--help` prints them.", *parts)


def _commands(command: Any, name: str) -> Iterator[str]:
    declared = getattr(command, "_declared", None)
    command = command if declared is None else declared.load(name.rpartition(" ")[2])
    context = typer.Context(command, info_name=name)
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from _commands(command.get_command(context, each), f"{name} {each}")
        return
    yield f"## {name}\n\n{inspect.cleandoc(command.help or '')}"
    if shown := [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]:
        yield _table(("option or argument", "default", ""), map(_parameter, shown))


def _parameter(parameter: Any) -> tuple[str, str, str]:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [str(parameter.name).upper()]
    default = parameter.default
    shown = "" if callable(default) or default in (None, False, (), []) else str(default).replace(str(CLONE), "CLONE")
    text = getattr(parameter, "help", "") or ""
    return ", ".join(map(_code, names)), "required" if parameter.required else _code(shown), text


def _settings() -> str:
    infos = list_settings({})
    rows = [(_code(each.name), _code(each.default.replace(str(CLONE), "CLONE")), each.meaning) for each in infos]
    knobs = [(_code(f"HEADRACE_{each.setting.upper()}"), each.throughput, each.small, each.reason) for each in KNOBS]
    return _page(
        "Settings",
        "Variables of the environment. `headrace settings` shows each with its value on your machine, and where "
        "that comes from; secrets are masked. `CLONE` is the repository's folder.",
        _table(("variable", "default", ""), rows),
        "## Profiles",
        "`HEADRACE_PROFILE` sets the settings below, unless they are given. "
        + " ".join(f"`{name}`: {purpose}." for name, purpose in PURPOSES.items())
        + " `fresh` keeps the defaults.",
        _table(("setting", "throughput", "small", "because"), knobs),
    )


def _yaml_keys() -> str:
    files: dict[str, tuple[Any, ...]] = {
        "pipeline.yaml": (pipeline._PipelineFile,),
        "contract.yaml": (contract_file._ContractFile, contract_file._Record),
        "derived.yaml": (derived_dataset.DerivedPipeline,),
        "analysis/*.yaml": (
            analyses.PageRank,
            analyses.Components,
            analyses.Closure,
            analyses.KMeans,
            analyses.Recommendations,
        ),
    }
    parts = [part for file, models in files.items() for part in (f"## {file}", *_models(models))]
    return _page(
        "Keys of the YAML files",
        "The keys of a dataset's files. An unknown key is refused, with its line. What windows, measures and "
        "types mean: [datasets](../../include/datasets/README.md).",
        *parts,
    )


def key_meanings() -> dict[str, dict[str, str]]:
    """Return what each key means, by the title of its model and the key."""
    found: dict[str, dict[str, str]] = yaml.safe_load((DOCS / "reference" / "key-meanings.yaml").read_text("utf-8"))
    return found


def _models(roots: Iterable[Any]) -> Iterator[str]:
    """Tables of the keys of these models and of all models below them, each once."""
    meanings = key_meanings()
    waiting, done, by_name = deque((root, "") for root in roots), set[Any](), dict[Any, bool]()
    while waiting:
        model, key = waiting.popleft()
        if model in done:
            continue
        done.add(model)
        about = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0] if not key or "Gold" in model.__name__ else ""
        if about.startswith(model.__name__):
            about = ""
        rows = []
        for name, field in model.__pydantic_fields__.items():
            if key and name == "name" and by_name[model]:
                continue
            declared = {each.func.__name__ for each in field.metadata if hasattr(each, "func")}
            written = next((text for reader, text in WRITTEN.items() if reader in declared), "")
            for below in [] if written else _inner(field.annotation):
                waiting.append((below, field.alias or name))
                by_name[below] = "named_items" in declared
            default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
            shown = field.alias or name
            meaning = meanings.get(_title(model), {}).get(shown, "")
            rows.append((_code(shown), written or _value(field, declared), default, meaning))
        title = f"### {_title(model)}, below `{key}`" if key else f"### {_title(model)}"
        yield "\n\n".join(filter(None, (title, about, _table(("key", "value", "default", "meaning"), rows))))


def _value(field: Any, readers: set[str]) -> str:
    kind = _kind(field.annotation)
    return kind.replace("list of: ", "by name: ", 1) if "named_items" in readers else kind


def _title(model: Any) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__.strip("_")).lower()
    return words.capitalize()


def _inner(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for each in get_args(annotation):
        yield from _inner(each)


def _kind(annotation: Any) -> str:
    if annotation in KINDS:
        return KINDS[annotation]
    origin, given = get_origin(annotation), [each for each in get_args(annotation) if each is not ...]
    if origin is Literal:
        return " or ".join(_code(each) for each in given)
    if hasattr(annotation, "__metadata__"):
        return _kind(given[0])
    if origin in (list, tuple):
        return f"list of: {_kind(given[0])}"
    if origin is dict:
        return "mapping"
    if given:
        return " or ".join(dict.fromkeys(_kind(each) for each in given if each is not type(None)))
    return f"*{_title(annotation).lower()}*" if hasattr(annotation, "__pydantic_fields__") else "text"


def _default(value: Any) -> str:
    if isinstance(value, timedelta):
        hours = value.total_seconds() / 3600
        return (
            f"{hours / 24:g} days" if hours >= 24 else f"{hours:g} hours" if hours >= 1 else f"{hours * 60:g} minutes"
        )
    return _code(value) if isinstance(value, str | int | float) and value != "" else ""


def _metrics() -> str:
    rows = [
        (_code(f"headrace_{each.name}"), "counter" if each.is_counter else "gauge", _code(each.by), each.about)
        for each in FIGURES
    ]
    return _page(
        "Metrics",
        "What `headrace metrics` serves for Prometheus. A metric of a stream also has the labels `dataset` and "
        "`release`.",
        _table(("metric", "kind", "label", ""), rows),
    )


def _alerts() -> str:
    rows = [
        (_code(each.name), _code(each.expression), f"{each.seconds} s", each.severity, each.summary, _code(each.remedy))
        for each in CONDITIONS
    ]
    return _page(
        "Alerts",
        "The conditions that Prometheus evaluates from `infra/observability/alerts.yaml`, and `headrace alerts` "
        "without it.",
        _table(("alert", "condition", "for", "severity", "message", "next command"), rows),
    )


def _http_api() -> str:
    rows = [
        (
            " ".join(sorted(route.methods)),
            _code(route.path),
            ", ".join(map(_code, _body(route.endpoint))),
            inspect.cleandoc(route.endpoint.__doc__ or "").split("\n\n")[0],
        )
        for route in routes.routes
        if isinstance(route, APIRoute)
    ]
    return _page(
        "HTTP API",
        "The console's server answers these requests with a token ([an Airflow of your "
        "own](../how-to/existing-airflow.md)). Airflow's operators use nothing else.",
        _table(("method", "path", "keys of the body", ""), rows),
    )


def _body(endpoint: Any) -> list[str]:
    model = get_type_hints(endpoint).get("body")
    return list(getattr(model, "model_fields", {}))


def _errors() -> str:
    found = sorted({row for path in _sources() for row in _errors_of(path)})
    return _page(
        "Error codes",
        "Errors say what happened, with which value, and the next command. Those below also have a code of their "
        "own for programs. "
        "*Refused*: nothing was done. *Terminal*: something must be changed first. *Transient*: the same call may "
        "succeed later.",
        _table(("code", "kind", "message", "next command"), found),
    )


def _sources() -> list[Path]:
    return sorted(path for folder in ("include", "spark_jobs", "tests/demo") for path in (CLONE / folder).rglob("*.py"))


def _errors_of(path: Path) -> Iterator[tuple[str, str, str, str]]:
    source = path.read_text("utf-8")
    if "code=" not in source:
        return
    for scope in ast.walk(ast.parse(source)):
        if not isinstance(scope, ast.FunctionDef):
            continue
        named = {
            target.id: node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(scope):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            for keyword in call.keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant) and keyword.value.value:
                    texts = [_text(each, named) for each in call.args[:2]] + ["", ""]
                    yield _code(keyword.value.value), call.func.id, texts[0], texts[1]


def _text(node: ast.expr, named: dict[str, ast.expr]) -> str:
    """Return the text of an expression, with `…` for what is known only at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Name) and node.id in named:
        return _text(named[node.id], {name: value for name, value in named.items() if name != node.id})
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, named) + _text(node.right, named)
    return "…"


def _decisions() -> str:
    paths = sorted(path for folder in ("include", "spark_jobs") for path in (CLONE / folder).rglob("adr-*.md"))
    rows = []
    for path in paths:
        text = path.read_text("utf-8")
        title = text.splitlines()[0].partition(": ")[2]
        place = path.relative_to(CLONE)
        superseded = re.search(r"^\*\*Status\.\*\* (.*)$", text, re.MULTILINE)
        status = superseded[1] if superseded else "in force"
        rows.append((_code(place.parent), f"[{title[:1].upper()}{title[1:]}](../../{place})", status))
    return _page(
        "Decisions",
        "Each record says what forced a decision, what was decided, what follows, and when the decision is "
        "violated. They are next to the code that they bind. "
        "Each is in force unless a line of it begins with *Status.*",
        _table(("where", "decision", "status"), rows),
    )


if __name__ == "__main__":
    for file, text in generated_pages().items():
        file.write_text(text, "utf-8")
        print(file.relative_to(CLONE))
