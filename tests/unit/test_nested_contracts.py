"""Contracts with values inside of others: what is declared, what is refused, what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from include.declare.contract import ADDITIVE, BREAKING, Contract, Limits, contract_changes
from include.declare.contract_file import check_standard, load_contract, read_contract, released_types, write_types
from include.declare.yaml_declarations import DeclarationRefused, Document

PARCELS = Path(__file__).parents[1] / "recovery" / "datasets" / "parcels"


def edited(folder: Path, change: Any) -> Path:
    """Return a folder with the contract of parcels after `change` of its record."""
    value = yaml.safe_load((PARCELS / "contract.yaml").read_text())
    change(value["schema"][0])
    folder.mkdir(exist_ok=True)
    (folder / "contract.yaml").write_text(yaml.safe_dump(value, sort_keys=False))
    return folder


def named(record: Any, name: str) -> Any:
    return next(each for each in record["properties"] if each["name"] == name)


def test_columns_inside_have_paths_in_silver_and_in_the_record() -> None:
    contract = load_contract(PARCELS)
    found = {column.name: (column.type, column.member) for column in contract.all_columns}
    assert found == {
        "parcel_id": ("string", "meta.id"),
        "sent_at": ("timestamp", "meta.at"),
        "sender": ("object", "sender"),
        "sender.name": ("string", "sender.name"),
        "sender.paid": ("number", "sender.paid"),
        "sender.address": ("object", "sender.address"),
        "sender.address.city": ("string", "sender.address.city"),
        "sender.address.zip_code": ("string", "sender.address.zip"),
        "items": ("array", "items"),
        "items[]": ("object", "items[]"),
        "items[].sku": ("string", "items[].sku"),
        "items[].price": ("number", "items[].price"),
        "items[].packed_at": ("timestamp", "items[].packed_at"),
        "items[].tags": ("array", "items[].tags"),
        "items[].tags[]": ("string", "items[].tags[]"),
        "labels": ("map", "labels"),
        "labels[]": ("string", "labels[]"),
        "extra": ("variant", "extra"),
    }
    assert contract.limits == Limits(depth=8, elements=100)


def test_contract_conforms_to_the_standard() -> None:
    document = Document(PARCELS / "contract.yaml")
    check_standard(document)
    assert document.problems == []


def add(**field: Any) -> Any:
    return lambda record: record["properties"].append({"name": "more", "logicalType": "string", **field})


def with_rule(action: str, expectation: str, **kwargs: Any) -> list[dict[str, Any]]:
    rule = {"type": "custom", "engine": "greatExpectations", "name": "r", "implementation": {"type": expectation}}
    rule["implementation"] |= {"kwargs": kwargs}
    return [rule | {"customProperties": [{"property": "action", "value": action}]}]


REFUSED: dict[str, tuple[Any, str]] = {
    "the same path": (add(physicalName="meta.id"), "'meta.id' is the field 'meta.id' of parcel_id"),
    "a path that differs by case from what is read": (
        add(physicalName="sender.PAID"),
        "'sender.PAID' is the field 'sender.paid' of sender.paid",
    ),
    "two fields of an object": (
        lambda record: named(record, "sender")["properties"].append(
            {"name": "more", "logicalType": "string", "physicalName": "paid"}
        ),
        "'paid' is the field 'paid' of paid",
    ),
    "one value of what is read as an object": (
        add(physicalName="sender.address"),
        "'sender.address' is read as string here and as object by sender.address: one of them must go",
    ),
    "bytes of what is read as a number": (
        add(physicalName="sender.paid", physicalType="binary"),
        "'sender.paid' is read as binary here and as decimal(9,2) by sender.paid: one of them must go",
    ),
    "a path into an array": (add(physicalName="items.sku"), "'items.sku' of more lies in 'items', which items reads"),
    "no path": (add(physicalName="meta..id"), "with dots between the members of a path"),
    "an empty pointer": (add(physicalName="/"), "each part of a JSON pointer names a member, '' does not"),
    "nothing inside": (add(logicalType="object"), "must list what is inside; to keep the part as JSON"),
    "items of no array": (add(items={"logicalType": "string"}), "is for arrays only; more is of type string"),
    "properties of a text": (add(properties=[{"name": "a", "logicalType": "string"}]), "is for objects only"),
    "maxItems of a text": (add(logicalTypeOptions={"maxItems": 1}), "is for arrays only; more is of type string"),
    "fewer items than must be": (
        lambda record: named(record, "items")["logicalTypeOptions"].update(minItems=5),
        "5 is greater than maxItems 4",
    ),
    "a map of an unknown type": (
        add(logicalType="object", customProperties=[{"property": "additionalProperties", "value": "strin"}]),
        "must be one of string, integer",
    ),
    "a key inside": (
        lambda record: named(record, "sender")["properties"][0].update(primaryKey=True),
        "sender.name lies in another column, and an identity does not",
    ),
    "a key with values inside": (lambda record: named(record, "items").update(primaryKey=True), "is no identity"),
    "a rule of elements": (
        lambda record: named(record, "items")["items"]["properties"][0].update(
            quality=with_rule("reject", "expect_column_values_to_not_be_null")
        ),
        "a record has several items[].sku",
    ),
    "a rule of whole tables inside": (
        lambda record: named(record, "sender")["properties"][0].update(
            quality=with_rule("hold", "expect_column_values_to_not_be_null")
        ),
        "rule r is about whole tables, whose columns do not include sender.name",
    ),
    "a limit below what is read": (
        lambda record: record["customProperties"].__setitem__(0, {"property": "maxDepth", "value": 3}),
        "items reads 4 objects and arrays deep, and maxDepth is 3",
    ),
    "a limit twice": (
        lambda record: record["customProperties"].append({"property": "maxDepth", "value": 9}),
        "must have one maxDepth",
    ),
    "no limit": (
        lambda record: record["customProperties"].__setitem__(1, {"property": "maxElements", "value": 0}),
        "maxElements must be from 1 to 1,000,000, is 0",
    ),
    "a name twice": (
        lambda record: named(record, "sender")["properties"].append({"name": "paid", "logicalType": "string"}),
        "'paid' occurs twice",
    ),
    "a bound of another type": (
        lambda record: named(record, "sender")["properties"][1]["logicalTypeOptions"].update(minimum="x"),
        "must be of type number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusal_names_what_is_wrong(case: str, tmp_path: Path) -> None:
    change, why = REFUSED[case]
    with pytest.raises(DeclarationRefused) as refused:
        load_contract(edited(tmp_path / "parcels", change))
    assert any(why in str(problem) for problem in refused.value.problems), refused.value


def test_path_into_an_object_that_is_read_apart_from_it_is_accepted(tmp_path: Path) -> None:
    contract = load_contract(edited(tmp_path, add(physicalName="sender.vat")))
    assert contract.columns[-1].path == ("sender", "vat")


@pytest.mark.parametrize("path", ["sender.paid", "sender.address.zip", "extra.n", "extra.a.b"])
def test_path_to_what_another_column_has_inside_is_accepted(tmp_path: Path, path: str) -> None:
    contract = load_contract(edited(tmp_path, add(physicalName=path)))
    assert contract.columns[-1].member == path


def test_types_inside_are_recorded_in_a_snapshot(tmp_path: Path) -> None:
    wide = {"name": "n", "logicalType": "integer", "physicalType": "bigint"}
    folder = edited(tmp_path, lambda record: named(record, "items")["items"]["properties"].append(wide))
    types = load_contract(folder).types
    write_types(folder, types, released_types(folder))
    found = read_contract(Document(folder / "contract.yaml", strict=False))
    assert found is not None
    assert (found.types["items[].n"], found.types) == ("bigint", types)


def changes(change: Any, folder: Path) -> list[tuple[str, str]]:
    base, fresh = load_contract(PARCELS), load_contract(edited(folder, change))
    return [(each.part, each.kind) for each in contract_changes(base, fresh)]


def test_changes_inside_are_named_by_path(tmp_path: Path) -> None:
    def change(record: Any) -> None:
        items = named(record, "items")["items"]["properties"]
        items[1]["logicalTypeOptions"]["minimum"] = 1
        items.append({"name": "weight", "logicalType": "integer"})
        named(record, "sender")["properties"][2]["properties"][1].update(name="postcode")
        record["properties"] = [each for each in record["properties"] if each["name"] != "labels"]

    found = changes(change, tmp_path)
    assert dict(found) == {
        "labels": BREAKING,
        "sender.address.postcode": BREAKING,
        "items[].price": BREAKING,
        "items[].weight": ADDITIVE,
    }


def test_hash_of_a_contract_is_that_of_an_equal_one() -> None:
    one, other = load_contract(PARCELS), load_contract(PARCELS)
    assert (hash(one), one) == (hash(other), other)
    assert isinstance(one, Contract)
