"""Names from outside never lead out of the state folder: by each path, each model, each address of the console."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from console_client import console_client, logged_in, with_passwords
from fastapi.testclient import TestClient
from pydantic import BaseModel, ValidationError

from include.change import plan_parameters
from include.ground import paths
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.serve import forms

OUTSIDE = (
    "../../x",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/../../b",
    "..\\..\\x/y",
    "a\0b",
    "x" * 300,
    "../" * 20 + "etc/passwd",
)
IN_ADDRESSES = ("..%2F..%2Fx", "%2e%2e", "%2Fetc%2Fpasswd", "..%5C..%5Cx", "a%00b", "x" * 300, "%252e%252e%252f")
TOKEN = "a token of more than twenty characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def paths_of_names() -> dict[str, tuple[Callable[..., Path], int]]:
    """Each path that is made of names, with how many it takes."""
    declared = {name: len(get_args(kind)[0]) - 1 for name, kind in get_type_hints(paths).items()}
    return {name: (getattr(paths, name), count) for name, count in declared.items() if count} | {
        "table_path": (paths.table_path, 3)
    }


@pytest.mark.parametrize(("function", "count"), paths_of_names().values(), ids=paths_of_names())
def test_no_path_is_made_of_a_name_that_leads_elsewhere(
    function: Callable[..., Path], count: int, settings: Settings
) -> None:
    for place in range(count):
        for name in OUTSIDE:
            names = ["silver.x" if function is paths.table_path and each == 2 else "x" for each in range(count)]
            names[place] = f"gold.{name}" if function is paths.table_path and place == 2 else name
            with pytest.raises(paths.NotAFolderName):
                function(settings, *names)


def test_every_path_function_is_tried() -> None:
    assert len(paths_of_names()) > 30


@pytest.mark.parametrize("name", OUTSIDE)
def test_params_of_a_run_name_no_dataset_elsewhere(name: str) -> None:
    with pytest.raises(ValidationError):
        forms.AuditParameters.model_validate({"datasets": [name], "full": False})
    with pytest.raises(ValidationError):
        forms.RollbackParameters.model_validate({"plan": name or "/"})


def models() -> Iterator[type[BaseModel]]:
    for module in (forms, plan_parameters):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, BaseModel) and found.__module__ == module.__name__:
                yield found


def loose_texts(schema: Any, place: str) -> Iterator[str]:
    """Yield where a JSON schema takes any text, also in lists and in models of fields."""
    if isinstance(schema, dict):
        if schema.get("type") == "string" and not schema.keys() & {"pattern", "enum", "const", "format"}:
            yield place
        for name, each in schema.items():
            yield from loose_texts(each, f"{place}.{name}")
    elif isinstance(schema, list):
        for each in schema:
            yield from loose_texts(each, place)


def test_no_model_takes_a_name_as_any_text() -> None:
    found = list(models())
    assert {"AuditBody", "PlanBody", "AuditParameters", "BackfillParameters"} <= {each.__name__ for each in found}
    assert [text for each in found for text in loose_texts(each.model_json_schema(), each.__name__)] == []


@pytest.fixture
def client(settings: Settings, tmp_path: Path) -> Iterator[TestClient]:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    given = with_passwords(settings, tmp_path).model_copy(update={"api_token_file": tmp_path / "token"})
    with console_client(given) as found:
        yield found


def addresses(client: TestClient) -> list[tuple[str, str, list[str]]]:
    """Method, address and parameters of each route that has a name in it."""
    routes: Any = client.app.routes  # type: ignore[attr-defined]
    found = [
        (method, each.path, list(each.param_convertors))
        for each in routes
        for method in getattr(each, "methods", None) or ()
    ]
    return [each for each in found if each[2]]


def test_no_address_of_the_console_leads_elsewhere(client: TestClient, tmp_path: Path) -> None:
    logged_in(client)
    routes, before = addresses(client), {*tmp_path.rglob("*")}
    assert len(routes) > 15
    for method, path, parameters in routes:
        for name in IN_ADDRESSES:
            address = path
            for each in parameters:
                address = address.replace(f"{{{each}}}", name).replace(f"{{{each}:path}}", name)
            try:
                answer = client.request(method, address, headers=BEARER, json={"by": "x"})
            except HeadraceError as error:
                raise AssertionError((method, address)) from error
            assert answer.status_code >= 300, (method, address, answer.status_code)
            assert "root:" not in answer.text
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.name for path in written} <= {"actions.jsonl", "ledger.sqlite"}, written
