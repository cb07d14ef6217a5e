"""The first folder of a dataset: what is inferred from a sample, and that it is a dataset without problems."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_codes import raises
from nested_samples import SHAPES
from typer.testing import CliRunner

from include.cli import folder as new_command
from include.cli.main import app
from include.declare.dataset import ExpectedCase, expected_case, load_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.inferred_dataset import InferredDataset, TimeForm, column_name, inferred_dataset
from include.declare.sample_records import RecordSample, SampleUnusable, file_sample, record_sample
from include.declare.scaffold import contract_text, write_folder
from include.ground.errors import Terminal
from include.ground.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BEGIN = datetime(2026, 5, 1, 8, 0, 0, 250_000, tzinfo=UTC)


def orders(count: int = 120, **more: Any) -> list[dict[str, Any]]:
    """Orders of two shops; a value of `more` that is a function gets the order's number."""
    return [
        {
            "order_id": f"o-{n}",
            "placed_at": (BEGIN + timedelta(minutes=n)).isoformat().replace("+00:00", "Z"),
            "shop": ("north", "south")[n % 2],
            "amount": n + 0.25,
            **{name: value(n) if callable(value) else value for name, value in more.items()},
        }
        for n in range(count)
    ]


def sample(records: list[dict[str, Any]]) -> RecordSample:
    return record_sample("orders.jsonl", [json.dumps(record).encode() for record in records])


def inferred(records: list[dict[str, Any]]) -> InferredDataset:
    return inferred_dataset("orders", "orders", sample(records), NOW)


def field(records: list[dict[str, Any]], name: str) -> Any:
    return next(found for found in inferred(records).fields if found.name == name)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda n: n, "integer"),
        (lambda n: n + 2**31 - 100, "bigint"),
        (lambda n: -(2**31) - n, "bigint"),
        (lambda n: n + 2**63, "number"),
        (lambda n: n / 2, "number"),
        (lambda n: n % 2 == 0, "boolean"),
        (lambda n: f"t{n}", "string"),
        (lambda n: "2026-05-01T08:00:00.123456789Z", "timestamp"),
        (lambda n: "2026-05-01T08:00:00+02:00", "timestamp"),
        (lambda n: "2026-05-01 08:00:00", "string"),
    ],
)
def test_type_is_that_of_every_value(value: Any, kind: str) -> None:
    assert field(orders(value=value), "value").type == kind


def test_number_has_room_for_more_digits_before_the_point() -> None:
    found = field(orders(rate=lambda n: 12.3456), "rate")
    assert (found.precision - found.scale > 2, found.scale) == (True, 6)


def test_field_is_required_when_no_record_lacks_it() -> None:
    records = orders(note=lambda n: None if n == 7 else "x", tip=1)
    records[3].pop("tip")
    assert {found.name: found.required for found in inferred(records).fields} == {
        **dict.fromkeys(("order_id", "placed_at", "shop", "amount"), True),
        **{"note": False, "tip": False},
    }


@pytest.mark.parametrize(
    ("count", "shop", "closed", "suggested"),
    [
        (240, lambda n: ("PAID", "OPEN")[n % 2], True, False),
        (240, lambda n: ("EUR", "USD")[n % 2], True, False),
        (199, lambda n: ("PAID", "OPEN")[n % 2], False, True),
        (240, lambda n: ("Berlin", "Paris", "Rome")[n % 3], False, True),
        (240, lambda n: ("north", "south")[n % 2], False, True),
        (240, lambda n: "PAID", False, False),
        (240, lambda n: f"S{n % 13}", False, False),
        (240, lambda n: "RARE" if n > 232 else "PAID", False, False),
        (240, lambda n: ("a b", "c d")[n % 2], False, True),
    ],
)
def test_enumeration_is_closed_only_when_its_values_are_codes(
    count: int, shop: Any, closed: bool, suggested: bool
) -> None:
    found = field(orders(count, shop=shop), "shop")
    assert (bool(found.values), bool(found.seen)) == (closed, suggested)


def properties_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the properties that contract.yaml declares, by name."""
    (schema,) = yaml.safe_load(contract_text(inferred(records)))["schema"]
    return {each["name"]: each for each in schema["properties"]}


def test_values_of_a_sample_are_suggested_and_others_accepted() -> None:
    records = orders(240, city=lambda n: ("Berlin", "Paris", "Rome")[n % 3], state=lambda n: ("OPEN", "PAID")[n % 2])
    found = properties_of(records)
    assert "quality" not in found["city"]
    assert "quality" in found["state"]
    suggestion = "# seen: Berlin, Paris, Rome; to accept only these: quality: [{type: library"
    assert suggestion in contract_text(inferred(records))


def test_small_sample_requires_the_key_and_the_time_only() -> None:
    """Later records may lack what a handful have, be empty, or have times before 1970 and long after the event."""
    small, large = (properties_of(orders(count, born="1961-04-12T06:07:00Z", note="x")) for count in (20, 200))
    assert {name for name, found in small.items() if found.get("required")} == {"order_id", "placed_at"}
    assert {name for name, found in large.items() if found.get("required")} == set(large)
    for found in (small, large):
        assert "logicalTypeOptions" not in found["born"]
        assert found["born"]["customProperties"] == [{"property": "future", "value": "36500 days"}]
        assert "minLength" not in found["note"]["logicalTypeOptions"]


@pytest.mark.parametrize(
    ("name", "value", "form"),
    [
        ("ts", lambda n: 1_777_000_000 + n, TimeForm.seconds),
        ("ts", lambda n: 1_777_000_000_123 + n, TimeForm.millis),
        ("created_at", lambda n: str(1_777_000_000_123 + n), TimeForm.millis),
        ("eventTime", lambda n: 1_777_000_000_123_456 + n, TimeForm.micros),
        ("paid", lambda n: 1_777_000_000 + n, TimeForm.none),
        ("at", lambda n: "2026-05-01 08:00:00.5", TimeForm.local),
        ("day", lambda n: "2026-05-01", TimeForm.day),
    ],
)
def test_form_of_a_time_is_recognised(name: str, value: Any, form: TimeForm) -> None:
    assert field(orders(**{name: value}), column_name(name)).form is form


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("1st", 1, "not a name of a column"),
        ('a"b', 1, "not a name of a column"),
        ("order-id", 1, "second column order_id"),
        ("sHop", 1, "differs from shop by case alone"),
        ("SHOP", 1, "differs from shop by case alone"),
        ("void", None, "null in every record"),
        ("mixed", lambda n: n if n % 2 else "x", "several types"),
        ("mixed", lambda n: n if n % 2 else True, "several types"),
    ],
)
def test_field_that_cannot_be_a_column_is_left_out_with_the_reason(name: str, value: Any, why: str) -> None:
    assert why in inferred(orders(**{name: value})).left_out[name]


def test_field_with_another_name_is_read_by_a_json_pointer() -> None:
    fields = {each.name: each.member for each in inferred(orders(**{"at all": 1, "@type": "x", "a.b": 1})).fields}
    assert fields.items() >= {"at_all": "/at all", "type": "/@type", "a_b": "/a.b"}.items()


def test_records_without_a_time_or_a_key_have_those_that_kafka_gave_them(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path)
    records = [{"Records": [{"at": "2026-05-01T08:00:00Z", "id": n}], "note": None} for n in range(3)]
    dataset = load_dataset("orders", write_folder(settings, inferred(records), sample(records)))
    assert dataset.pipeline.identity == ("_partition", "_offset")
    assert dataset.contract.identity == ()
    assert dataset_problems(settings, "orders") == []
    case = expected_case(tmp_path / "orders" / "cases" / "sample.jsonl")
    assert case is not None
    assert case.rejected == {}
    silver = (tmp_path / "orders" / "silver.py").read_text()
    assert 'withColumn("event_time", F.col("_timestamp"))' in silver


def test_few_records_make_no_text_an_identity_that_is_not_named_like_one() -> None:
    actions = inferred(orders(4, order_id="same", action=lambda n: f"a{n}", amount=1))
    assert actions.identity == ("order_id", "placed_at")
    assert inferred(orders(20, order_id="same", action=lambda n: f"a{n}", amount=1)).identity == ("action",)


@pytest.mark.parametrize(
    ("member", "column"), [("über", "uber"), ("prénom_Usuel", "prenom_usuel"), ("sourceIPs", "source_ips")]
)
def test_letters_lose_their_marks_and_a_plural_is_one_word(member: str, column: str) -> None:
    assert column_name(member) == column


def test_names_in_camel_case_become_columns() -> None:
    assert [column_name(name) for name in ("clientIp", "HTTPStatus", "client-ip", "_id", "plain")] == [
        *("client_ip", "http_status", "client_ip", "id", "plain")
    ]


@pytest.mark.parametrize(
    ("more", "identity"),
    [
        ({}, ("order_id",)),
        ({"id": lambda n: n}, ("order_id",)),
        ({"order_id": "same", "code": lambda n: f"c{n}"}, ("code",)),
        ({"order_id": lambda n: f"o-{n // 2}"}, ("order_id", "placed_at")),
        ({"order_id": "o", "placed_at": "2026-05-01T08:00:00Z", "amount": 1, "n": lambda n: n / 2}, None),
    ],
)
def test_primary_key_is_what_differs_in_every_record(more: Any, identity: tuple[str, ...] | None) -> None:
    found = inferred(orders(**more))
    expected = identity or tuple(each.name for each in found.fields if each.required)
    assert found.identity == expected


def test_redelivered_records_do_not_hide_the_primary_key() -> None:
    records = orders()
    assert inferred([*records, records[5]]).identity == ("order_id",)


FAULTS: dict[str, dict[str, Any]] = {
    "order_id is missing": {"order_id": None},
    "amount is of another type than number": {"amount": "12"},
    "placed_at is not a time with a zone": {"placed_at": "2026-02-30T08:00:00Z"},
    "note is in few others": {"note": "x"},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_records_of_a_topic_do_not_hide_what_nearly_all_are(fault: str) -> None:
    usual = orders(400)
    faulty = {**usual[7], "order_id": "o-faulty", **FAULTS[fault]}
    found = inferred([*usual, faulty])
    assert dict(found.unusual) == {fault: 1}
    assert replace(found, records=0, unusual={}) == replace(inferred(usual), records=0, unusual={})


def test_sample_without_a_usual_form_is_taken_as_a_whole() -> None:
    mixed = [record | ({"amount": "12"} if n % 10 == 0 else {}) for n, record in enumerate(orders(400))]
    assert not inferred(mixed).unusual
    few = [*orders(100), {**orders(1)[0], "order_id": None}]
    assert not inferred(few).unusual, "one of a hundred is no rule"


def test_field_named_like_an_identity_may_repeat_in_few_records() -> None:
    records = orders(1_000)
    found = inferred([*records, {**records[3], "amount": 1.25}])
    assert found.identity == ("order_id",)
    assert found.identity_reason.startswith("different in all but 1 of 1,001")
    shared = inferred(orders(1_000, order_id=lambda n: f"o-{n // 2}"))
    assert shared.identity == ("order_id", "placed_at")


def test_record_with_half_a_character_is_no_text() -> None:
    lines = [json.dumps(record).encode() for record in orders()]
    assert len(record_sample("here", [*lines, b'{"order_id": "\\ud800"}']).objects) == len(lines)


def test_time_that_lies_after_the_event_may_be_in_the_future() -> None:
    due = lambda n: (BEGIN + timedelta(days=3)).isoformat()  # noqa: E731
    found = {each.name: each.ahead for each in inferred(orders(due_at=due)).fields if each.is_time}
    assert found == {"placed_at": False, "due_at": True}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (b"\n\n", "has no record"),
        (b"a,b\n1,2\n", "not JSON objects"),
        (b'{"a": 1}\n[1]\n"x"\n', "2 of 3 records are not JSON objects"),
        (b"\xff\xfe\n", "not JSON objects"),
    ],
)
def test_unusable_sample_is_refused_with_the_reason(tmp_path: Path, lines: bytes, why: str) -> None:
    file = tmp_path / "sample.jsonl"
    file.write_bytes(lines)
    with pytest.raises(SampleUnusable, match=why):
        inferred_dataset("orders", "orders", file_sample(file), NOW)


SAMPLES: dict[str, list[dict[str, Any]]] = {
    "zoned": orders(),
    "millis": [{"ts": 1_777_000_000_000 + n, "device": f"d{n % 3}", "level": n / 4} for n in range(50)],
    "text_millis": [{"event_time": str(1_777_000_000_000 + n), "kind": "view"} for n in range(50)],
    "local": [{"id": n, "at": f"2026-05-01 08:{n:02}:00", "on": True} for n in range(50)],
    "camel": [{"eventId": f"e{n}", "occurredAt": "2026-05-01T08:00:00Z", "unitPrice": 1.5} for n in range(50)],
    "one": orders(1),
    "day": [{"day": "2026-05-01", "no": n, "null": "x", "amount": 10**20} for n in range(5)],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_written_folder_has_no_problem(tmp_path: Path, name: str) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "data sets")
    found = sample(SAMPLES[name])
    written = write_folder(settings, inferred_dataset(name, "a-topic", found, NOW), found)
    assert dataset_problems(settings, name) == []
    dataset = load_dataset(name, written)
    assert dataset.pipeline.topic == "a-topic"
    assert dataset.pipeline.gold[0].name == f"{name}_days"
    case = expected_case(written / "cases" / "sample.jsonl")
    assert case is not None
    assert sorted(set(sum(case.rejected.values(), []))) == ["duplicate", "missing_id"]


@pytest.mark.parametrize("name", ["from", "values", "desc", "null", "current_date", "records", "when"])
@pytest.mark.parametrize("value", [lambda n: n + 0.5, lambda n: "ab"[n % 2]], ids=["number", "text"])
def test_field_whose_name_is_a_word_of_sql_makes_no_problem(tmp_path: Path, name: str, value: Any) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    found = sample([{key: each[key] for key in ("order_id", "placed_at", name)} for each in orders(**{name: value})])
    write_folder(settings, inferred_dataset("orders", "orders", found, NOW), found)
    assert dataset_problems(settings, "orders") == []


def test_existing_folder_is_never_written_over(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path)
    (tmp_path / "orders").mkdir()
    with raises(Terminal, "folder-refused", match="exists"):
        write_folder(settings, inferred(orders()), sample(orders()))
    assert list((tmp_path / "orders").iterdir()) == []


def test_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "file")
    with raises(Terminal, "folder-refused", match="Not a directory"):
        write_folder(settings, inferred(orders()), sample(orders()))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["new", "Orders", "--from", "SAMPLE"], "lower-case letters"),
        (["new", "../orders", "--from", "SAMPLE"], "lower-case letters"),
        (["new", "orders"], "give a sample"),
        (["new", "orders", "--from", "nowhere.jsonl"], "cannot be read"),
        (["try", "orders", "nowhere.jsonl"], "cannot be read"),
        (["produce", "--file", "SAMPLE"], "needs the topic"),
        (["produce", "flights", "--file", "SAMPLE", "--topic", "x"], "not both"),
        (["produce", "--file", "SAMPLE", "--topic", "x", "--corrupt", "1%"], "faults are for feeds"),
        (["produce"], "name a feed"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], shown: str) -> None:
    (tmp_path / "sample.jsonl").write_text('{"a": 1}\n')
    settings = Settings(state=tmp_path / "state", datasets=tmp_path)
    monkeypatch.setattr(new_command, "load_settings", lambda: settings)
    given = [str(tmp_path / "sample.jsonl") if word == "SAMPLE" else word for word in words]
    result = CliRunner().invoke(app, given)
    assert result.exit_code != 0
    assert shown in " ".join((result.output + str(result.exception)).replace("│", " ").split())
    assert not (tmp_path / "orders").exists()


def test_case_names_each_difference() -> None:
    case = ExpectedCase(rejected={"2": ["enum"], "3": ["type"]}, gold={"gold.days": [{"n": 1}]})
    assert case.differences({"2": ["enum"], "4": ["range"]}, {"gold.days": [{"n": 2}]}) == [
        "line 3: expected type, is accepted",
        "line 4: expected accepted, is range",
        'gold.days: expected 1 rows [{"n": 1}], is 1 rows [{"n": 2}]',
    ]
    assert case.differences({"2": ["enum"], "3": ["type"]}, {"gold.days": [{"n": 1}]}) == []


def test_unreadable_expectation_is_refused(tmp_path: Path) -> None:
    case = tmp_path / "sample.jsonl"
    assert expected_case(case) is None
    (tmp_path / "sample.expected.json").write_text('{"rejectd": {}}')
    with raises(Terminal, "case-unreadable", match="Extra inputs"):
        expected_case(case)


KEYS_AND_TIMES = {
    "cloud_events": (("id",), "time"),
    "pushes": (("head_commit.id",), "head_commit.timestamp"),
    "trail": (("eventID",), "eventTime"),
    "customers": (("after.id", "ts_ms"), "ts_ms"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_folder_of_a_nested_sample_is_a_dataset(name: str, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "data sets")
    records = [SHAPES[name](n) for n in range(300)]
    found = inferred_dataset(name, name, sample(records), NOW)
    keys, time = KEYS_AND_TIMES[name]
    assert tuple(f.member for f in found.fields if f.name in found.identity) == keys
    assert found.time.member == time
    loaded = load_dataset(name, write_folder(settings, found, sample(records)))
    columns = loaded.contract.all_columns
    read = {column.path for column in columns}
    for key in (key for key in (*keys, time) if "." in key):
        (inside,) = [column for column in columns if column.name == column.member == key]
        assert not inside.required, "its own column says what it must be"
    assert {path for record in records for path in paths(record)} - read <= NULL_IN_ALL


NULL_IN_ALL = {("repository", "license"), ("responseElements",), ("transaction",), ("head_commit", "removed", "[]")}


def paths(value: Any, around: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all values inside of a value; those of elements are one."""
    if isinstance(value, list):
        return [found for each in value for found in paths(each, (*around[:-1], f"{around[-1]}[]"))]
    if not isinstance(value, dict):
        return [around]
    return [found for name, each in value.items() for found in paths(each, (*around, name))]


def test_object_with_many_keys_is_a_map_and_parts_without_one_form_are_kept() -> None:
    records = orders(
        250,
        scores=lambda n: {f"k{n}": n},
        mixed=lambda n: {"a": 1} if n % 2 else [1],
        empty={},
        lists=lambda n: [[n, None]],
        several=lambda n: [n, "x"],
    )
    found = {each.name: each for each in inferred(records).fields}
    kinds = {name: found[name].type for name in ("scores", "mixed", "empty", "lists", "several")}
    assert kinds == {"scores": "map", "mixed": "variant", "empty": "variant", "lists": "array", "several": "variant"}
    (item,) = found["lists"].fields
    assert (item.type, item.required, item.fields[0].type, item.fields[0].required) == ("array", True, "integer", False)
    assert (found["scores"].fields[0].type, found["scores"].fields[0].required) == ("integer", True)
