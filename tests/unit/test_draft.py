"""A draft has the contract's text with the new fields at their places; the rest stays as it was written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from error_codes import raises
from test_audit_balance import sales_settings, write_sales

from include.change.draft import _inferred, draft_release, with_fields, with_version
from include.change.drift import RecordPosition, UnknownField
from include.declare.dataset import declared_dataset
from include.declare.inferred_dataset import InferredField, inferred_fields
from include.declare.sample_records import record_sample
from include.ground.errors import Refused
from include.ground.paths import draft_path
from include.ground.settings import Settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: sales
version: 1.0.0  # of the team
schema:
  - name: sales
    properties:
      # The key.
      - {name: id, logicalType: string, primaryKey: true}
      - name: buyer
        logicalType: object
        properties:
          - {name: city, logicalType: string}
          - name: home
            physicalName: address.home
            logicalType: object
            properties:
              - name: street
                logicalType: string
                # Streets are long.
                logicalTypeOptions:
                  maxLength: 900
      # The last one.
      - {name: paid, logicalType: boolean}

# Of gold.
slaProperties: []
"""


def added(path: str, value: object) -> tuple[InferredField, UnknownField]:
    *around, member = path.split(".")
    outer = InferredField("", tuple(around), "object", False, 0) if around else None
    ((field,), _) = inferred_fields([{member: value}], NOW, outer)
    return field, UnknownField((*around, member), 3, RecordPosition(8, 0, 17))


def lines_added(*fields: tuple[InferredField, UnknownField]) -> list[tuple[str, str]]:
    """Return the line before each added property, and the property; all other lines are as before."""
    before, after = CONTRACT.splitlines(), with_fields(CONTRACT, fields).splitlines()
    new = [number for number, line in enumerate(after) if line not in before]
    assert [line for number, line in enumerate(after) if number not in new] == before
    seen, made = new[::2], new[1::2]
    assert {after[number].strip() for number in seen} == {"# in 3 records, the first is batch/partition/offset 8/0/17"}
    return [(after[number - 2].strip(), after[number]) for number in made]


@pytest.mark.parametrize(
    ("path", "value", "behind", "expected"),
    [
        ("gift", True, "- {name: paid, logicalType: boolean}", "      - {name: gift, logicalType: boolean}"),
        (
            "buyer.zipCode",
            7,
            "maxLength: 900",
            "          - {name: zip_code, logicalType: integer, physicalName: zipCode}",
        ),
        ("buyer.address.home.floor", 2, "maxLength: 900", "              - {name: floor, logicalType: integer}"),
        (
            "buyer.address.city",
            False,
            "maxLength: 900",
            "          - {name: address_city, logicalType: boolean, physicalName: address.city}",
        ),
    ],
)
def test_a_field_is_a_property_of_the_innermost_object(path: str, value: object, behind: str, expected: str) -> None:
    assert lines_added(added(path, value)) == [(behind, expected)]


def test_several_fields_have_their_places_and_own_names() -> None:
    found = with_fields(CONTRACT, [added("gift", True), added("buyer.gift", True), added("Paid", 1)])
    assert "      - {name: gift, logicalType: boolean}\n" in found
    assert "          - {name: gift, logicalType: boolean}\n" in found
    assert "      - {name: paid_2, logicalType: integer, physicalName: Paid}\n" in found


def test_a_field_inside_of_the_last_object_is_behind_its_last_one() -> None:
    text = CONTRACT.replace("      # The last one.\n      - {name: paid, logicalType: boolean}\n", "")
    order = [added("gift", True), added("buyer.gift", True), added("buyer.address.home.floor", 2)]
    assert yaml.safe_load(with_fields(text, order)) == yaml.safe_load(with_fields(text, order[::-1]))
    id_, buyer, gift = yaml.safe_load(with_fields(text, order))["schema"][0]["properties"]
    assert [each["name"] for each in buyer["properties"]] == ["city", "home", "gift"]
    assert [each["name"] for each in buyer["properties"][1]["properties"]] == ["street", "floor"]


def test_new_fields_whose_columns_would_have_one_name_have_two() -> None:
    names = [
        each["name"]
        for each in yaml.safe_load(with_fields(CONTRACT, [added("giftWrap", True), added("gift-wrap", True)]))[
            "schema"
        ][0]["properties"]
    ]
    assert names[-2:] == ["gift_wrap", "gift_wrap_2"]


def test_properties_on_one_line_are_refused() -> None:
    text = "schema: [{name: sales, properties: [{name: id, logicalType: string}]}]\n"
    with raises(Refused, "draft-impossible", match="one line"):
        with_fields(text, [added("gift", True)])


def test_version_is_replaced_where_it_stands() -> None:
    assert with_version(CONTRACT, "1.1.0") == CONTRACT.replace("version: 1.0.0", "version: 1.1.0")


SOLD = {"event_id": "b", "sold_at": "2026-03-01T12:00:00Z", "coupon": "SPRING", "Shop": "north"}


@pytest.fixture
def sold(tmp_path: Path) -> Settings:
    """Sales of two batches; records of the second have two fields that the contract lacks, one in another case."""
    settings = sales_settings(tmp_path)
    text = json.dumps(SOLD).encode()
    write_sales(settings, {(0, 0): b'{"event_id":"a"}', (0, 1): b"bad", (0, 3): text, (1, 0): text})
    return settings


def test_a_draft_is_the_folder_with_the_new_fields_and_the_version_that_they_need(sold: Settings) -> None:
    draft = draft_release(sold, "sales", None, NOW, replaces=False)
    assert draft is not None
    assert (draft.version, draft.since_batch, list(draft.fields)) == ("1.1.0", 0, ["coupon"])
    assert (draft.fields["coupon"].rows, draft.fields["coupon"].first) == (2, RecordPosition(1, 0, 3))
    assert draft.left_out == {"Shop": "differs from shop by case alone"}
    drafted = declared_dataset(sold.model_copy(update={"datasets": draft.datasets}), "sales")
    assert [column.name for column in drafted.contract.columns][-2:] == ["amount", "coupon"]
    assert draft.sample.read_bytes().splitlines()[0] == json.dumps(SOLD).encode(), "the newest record is the first"
    assert "coupon" not in declared_dataset(sold, "sales").contract.types, "the dataset's own folder stays as it was"


def test_fields_of_an_arrays_elements_are_left_out_by_name() -> None:
    tax = UnknownField(("lines[]", "tax"), 2, RecordPosition(8, 0, 17))
    sample = record_sample("bronze.sales", [b'{"id": "1", "lines": [{"tax": 2}]}'])
    assert _inferred([tax], sample, {}, NOW) == (
        [],
        {"lines[].tax": "is in elements of an array: add it to their items"},
    )


def test_a_draft_that_is_there_is_replaced_on_request_alone(sold: Settings) -> None:
    draft = draft_release(sold, "sales", None, NOW, replaces=False)
    assert draft is not None
    (draft.folder / "silver.py").write_text("# mine")
    with raises(Refused, "draft-exists", match="nothing was written"):
        draft_release(sold, "sales", None, NOW, replaces=False)
    assert (draft.folder / "silver.py").exists()
    draft_release(sold, "sales", None, NOW, replaces=True)
    assert not (draft.folder / "silver.py").exists()


def test_a_draft_stays_when_the_next_one_is_refused(sold: Settings) -> None:
    draft = draft_release(sold, "sales", None, NOW, replaces=False)
    assert draft is not None
    contract = sold.datasets / "sales" / "contract.yaml"
    head, _, properties = contract.read_text().partition("    properties:\n")
    one_line = ", ".join(line.strip().removeprefix("- ") for line in properties.splitlines())
    contract.write_text(f"{head}    properties: [{one_line}]\n")
    with raises(Refused, "draft-impossible", match="one line"):
        draft_release(sold, "sales", None, NOW, replaces=True)
    assert (draft.folder / "contract.yaml").exists()


def test_without_new_fields_nothing_is_drafted(tmp_path: Path) -> None:
    settings = sales_settings(tmp_path)
    write_sales(settings)
    assert draft_release(settings, "sales", None, NOW, replaces=False) is None
    assert not draft_path(settings, "sales").exists()


def test_fields_of_an_envelope_s_row_are_declared_in_the_row() -> None:
    outer = InferredField("", ("after",), "object", False, 0)
    ((field,), _) = inferred_fields([{"gift": True}], NOW, outer)
    found = with_fields(
        CONTRACT, [(field, UnknownField(field.path, 3, RecordPosition(8, 0, 17)))], ("after",), ["gift"]
    )
    assert "      - {name: gift_2, logicalType: boolean, physicalName: gift}\n" in found
