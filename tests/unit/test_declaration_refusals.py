"""Invalid declarations of a dataset: each refusal names file, line, key and the allowed values."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from include.cli.main import app
from include.declare.dataset import (
    dataset_names,
    declared_dataset,
    load_dataset,
    misnamed_folders,
    released_dataset,
    snapshot_dataset,
)
from include.declare.dataset_checks import checked_dataset, dataset_problems, validate_datasets
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.paths import snapshot_path
from include.ground.settings import CLONE, Settings, load_settings

CONTRACT, PIPELINE, SILVER, QUERY = "contract.yaml", "pipeline.yaml", "silver.py", "gold/worst_delays.sql"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets", ignore=ignored)
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


@dataclass(frozen=True)
class Row:
    """Replace `old` by `new` in a file of flights: the problem is in the line that holds `line` (default: `new`)."""

    file: str
    old: str
    new: str
    key: str
    words: str
    line: str = ""
    found_in: str = ""


DEST = "{pattern: '^[A-Z]{3}$'}"
FLIGHT = "{minimum: 1, maximum: 9999}"
DISTANCE = "logicalTypeOptions: {minimum: 1, maximum: 12000}"
HOUR = "window: {column: scheduled_departure, size: 1 hour, as: hour}"
OPTIONS = "logicalTypeOptions"
TAIL = "- name: tailnum"
TAILS = "tails: {approx_distinct: tailnum}"
TIME = 'logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}\n      - name: scheduled_departure'


def dest(pattern: str, words: str) -> Row:
    return Row(CONTRACT, DEST, f"{{pattern: '{pattern}'}}", f"[8].{OPTIONS}.pattern", words)


def flight(options: str, key: str, words: str) -> Row:
    return Row(CONTRACT, FLIGHT, options, f"[6].{OPTIONS}.{key}", words)


def distance(lines: str, key: str, words: str, line: str = "") -> Row:
    return Row(CONTRACT, DISTANCE, lines, f"[10].{key}", words, line)


def window(words: str, key: str, why: str) -> Row:
    return pipeline(HOUR, HOUR.replace("size: 1 hour", words), f"gold.carrier_hours.window.{key}", why)


def time(minimum: str, words: str) -> Row:
    new = TIME.replace('"1970-01-01T00:00:00Z"', minimum)
    return Row(CONTRACT, TIME, new, f"[3].{OPTIONS}.minimum", words, new.splitlines()[0])


def pipeline(old: str, new: str, key: str, words: str) -> Row:
    return Row(PIPELINE, old, new, key, words)


ROWS: dict[str, Row] = {
    "unknown key of a column": distance(f"{DISTANCE}\n        colour: red", "colour", "is not a known key; known:"),
    "unknown key of the options": flight("{minimun: 1}", "minimun", "known: format, maxItems, maxLength"),
    "unknown key of the pipeline": pipeline(
        "lateness: 2 days",
        "lateness: 2 days\nlate: 1",
        "late",
        "known: changes, children, driver, envelope, event_time",
    ),
    "driver that is no name": pipeline(
        "lateness: 2 days", "lateness: 2 days\ndriver: a/b", "driver", "must be a name of small letters"
    ),
    "duplicate key of a bound": flight("{minimum: 1, minimum: 2}", "minimum", "occurs twice"),
    "duplicate gold table": pipeline("  route_days:", "  carrier_hours:", "gold.carrier_hours", "occurs twice"),
    "key that is no text": pipeline("tails: {", "no: {", "measures.no", "write the key in quotes"),
    "text that YAML reads as a boolean": pipeline(
        "keys: [carrier, origin]",
        "keys: [carrier, no]",
        "keys[1]",
        "must be a valid string, is False; write it in quotes",
    ),
    "boolean as a bound": flight("{minimum: true}", "minimum", "must be of type integer, is True"),
    "bound without a value": flight("{minimum: null}", "minimum", "has no value"),
    "bound that is not decimal": flight("{minimum: 010}", "minimum", "must be written in decimal digits, is 010"),
    "text as a bound of an integer": flight('{minimum: "soon"}', "minimum", "must be of type integer, is 'soon'"),
    "text as a bound of a time": time('"soon"', "must be a time like 2013-01-01T00:00:00Z, is 'soon'"),
    "month 13": time('"2013-13-01T00:00:00Z"', "must be a time"),
    "time without zone": time('"2013-01-01T00:00:00"', "must have a zone"),
    "bound beyond 64 bits": flight("{minimum: -99999999999999999999}", "minimum", "must fit in 64 bits"),
    "minimum above maximum": flight("{minimum: 5, maximum: 4}", "minimum", "5 is greater than maximum 4"),
    "bounds of a string": Row(CONTRACT, DEST, "{minimum: 1}", f"[8].{OPTIONS}.minimum", "a string has no bounds"),
    "minLength above maxLength": Row(CONTRACT, DEST, "{minLength: 5, maxLength: 4}", "minLength", "5 is greater than"),
    "negative length": Row(CONTRACT, DEST, "{minLength: -3}", f"[8].{OPTIONS}.minLength", "must be 0 or more, is -3"),
    "length of a number": flight("{maxLength: 4}", "maxLength", "is for strings only"),
    "pattern of a number": flight("{pattern: '1'}", "pattern", "is for strings only; flight is of type int"),
    "pattern that does not compile": dest("(", "is not a regular expression"),
    "pattern of an open class": dest("[", "mean the same in Java and Python"),
    "pattern with nested quantifiers": dest("^([A-Z]+)*$", "repeats a group without bound"),
    "pattern with bounded nested quantifiers": dest("^([A-Z]+){0,99}$", "can match in so many ways"),
    "pattern with overlapping alternatives": dest("^(A|AA){0,99}$", "can match in so many ways"),
    "pattern with adjacent quantifiers": dest("^[A-Z]*[A-Z]*[A-Z]*$", "can match in so many ways"),
    "pattern with adjacent quantifiers in groups": dest("^([A-Z]*)([A-Z]*)([A-Z]*)$", "can match in so many ways"),
    "pattern with three quantifiers for one text": dest("^.*A.*B.*C$", "can match in so many ways"),
    "pattern with two quantifiers and no beginning": dest("A.*B.*C", "can match in so many ways"),
    "pattern that repeats a group too often": dest("^(A|B){0,5000}$", "repeats groups 5,000 times"),
    "pattern that repeats repeated groups": dest("^(-(A|B){0,99}){0,99}$", "repeats groups 9,900 times"),
    "enumeration of a number": distance(
        "quality: [{type: library, metric: invalidValues, mustBe: 0, arguments: {validValues: ['1']}}]",
        "quality",
        "validValues is for strings only",
    ),
    "enumeration of numbers": Row(
        CONTRACT,
        "validValues: [EWR, JFK, LGA]",
        "validValues: [1]",
        "validValues[0]",
        "must be a valid string, is 1; write it in quotes",
    ),
    "unknown type": Row(
        CONTRACT,
        "- name: carrier\n        logicalType: string",
        "- name: carrier\n        logicalType: text",
        "[5].logicalType",
        "must be one of string, integer, number, timestamp, date, time, boolean, object, array, is 'text'",
        "logicalType: text",
    ),
    "contract of another folder": Row(
        CONTRACT, "name: flights\nversion", "name: planes\nversion", "name", "'flights', is 'planes'", "name: planes"
    ),
    "same column twice": Row(CONTRACT, "- name: dest", "- name: origin", "[8].name", "'origin' occurs twice"),
    "field of another column in another case": Row(
        CONTRACT, TAIL, f"{TAIL}\n        physicalName: DEST", "[9].physicalName", "'DEST' is the field 'dest' of dest"
    ),
    "column in capitals": Row(CONTRACT, TAIL, "- name: Carrier", "[9].name", "must be lower-case"),
    "column with underscore": Row(CONTRACT, TAIL, "- name: _tail", "[9].name", "begin with a letter"),
    "text that is not UTF-8": Row(CONTRACT, "status: active", "status: \udcff", "", "is not UTF-8: byte 0xff"),
    "text that is not YAML": Row(CONTRACT, "status: active", "status: [active", "", "is not YAML", "description:"),
    "implementation that is not YAML": Row(
        CONTRACT,
        "implementation: {type: expect_column_values_to_be_unique, kwargs: {column: event_id}}",
        'implementation: "{bad"',
        "quality[6].implementation",
        "is a text that is not YAML",
    ),
    "rule of a gold table that is not declared": Row(
        CONTRACT, "- name: route_days", "- name: route_dayz", "schema[1].name", "is not a gold table of pipeline.yaml"
    ),
    "latency of nothing": Row(CONTRACT, "value: 5, unit: m", "value: 0, unit: m", "[0].value", "greater than 0"),
    "topic of dots": pipeline("topic: flights", "topic: '..'", "topic", "neither '.' nor '..'"),
    "topic of Kafka's own": pipeline("topic: flights", "topic: __consumer_offsets", "topic", "not begin with '__'"),
    "topic with a blank": pipeline("topic: flights", "topic: my flights", "topic", "must be 1 to 249 letters"),
    "retention too short": pipeline(
        "partitions: 2", "partitions: 2\nretention: {versions: 59 minutes}", "retention.versions", "at least 1 hour"
    ),
    "unknown retention": pipeline(
        "partitions: 2",
        "partitions: 2\nretention: {verions: 2 hours}",
        "retention.verions",
        "known: bronze, logs, plans, releases, removed, silver, versions",
    ),
    "no partitions": pipeline("partitions: 2", "partitions: 0", "partitions", "must be from 1 to 10000, is 0"),
    "too many partitions": pipeline("partitions: 2", "partitions: 100000", "partitions", "from 1 to 10000"),
    "partitions as a text": pipeline("partitions: 2", "partitions: '2'", "partitions", "must be a valid integer"),
    "duration beyond time": pipeline(
        "horizon: 3 days", "horizon: 99999999999 days", "identity.horizon", "must be at most 36500 days"
    ),
    "superscript digits": pipeline("horizon: 3 days", "horizon: ² days", "identity.horizon", "like '2 days'"),
    "lateness beyond time": pipeline("lateness: 2 days", "lateness: 900000000 days", "lateness", "at most"),
    "unknown event time": pipeline("event_time: occurred_at", "event_time: at", "event_time", "'at' is not a column"),
    "event time of another type": pipeline("event_time: occurred_at", "event_time: kind", "event_time", "timestamp"),
    "event time as an expression": pipeline(
        "event_time: occurred_at", "event_time: flight + 1", "event_time", "must be the name of a column"
    ),
    "identity twice": pipeline("columns: [event_id]", "columns: [event_id, event_id]", "columns[1]", "occurs twice"),
    "window named as a column": pipeline(
        HOUR, HOUR.replace("as: hour", "as: carrier"), "gold.carrier_hours.window.as", "already a column of silver"
    ),
    "unit of a former release": window("unit: hour", "unit", "write size: 1 hour"),
    "size that is not a length": window("size: fortnight", "size", "like '10 seconds'"),
    "size of nothing": window("size: 0 hours", "size", "at least 1 hour"),
    "slide that leaves gaps": window("size: 1 hour, slide: 7 minutes", "slide", "must divide the size, 1 hour"),
    "slide of another calendar": window("size: 1 month, slide: 1 day", "slide", "must divide the size"),
    "slide of many windows": window("size: 1 hour, slide: 1 second", "slide", "3,600 windows"),
    "offset of a whole window": window("size: 1 hour, offset: 60 minutes", "offset", "shorter than 1 hour"),
    "hours of a time zone": window("size: 1 hour, time_zone: Asia/Kolkata", "time_zone", "use offset"),
    "unknown time zone": window("size: 1 day, time_zone: Europe/Pari", "time_zone", "like Europe/Paris"),
    "unknown window column": pipeline(
        HOUR,
        HOUR.replace("scheduled_departure", "schedule"),
        "carrier_hours.window.column",
        "'schedule' is not a column",
    ),
    "measure named as a key": pipeline(
        TAILS, "carrier: {approx_distinct: tailnum}", "measures.carrier", "'carrier' is already a column of the table"
    ),
    "measure twice": pipeline(TAILS, "delayed: {max: flight}", "measures.delayed", "occurs twice"),
    "measure with underscore": pipeline(TAILS, "_tails: {max: flight}", "measures._tails", "begin with a letter"),
    "measure of an unknown function": pipeline(TAILS, "tails: {median: flight}", "measures.tails", "'approx_distinct'"),
    "measure of two functions": pipeline(
        TAILS, "tails: {min: flight, max: flight}", "measures.tails", "must have one function"
    ),
    "measure that does not parse": pipeline(
        TAILS, 'tails: {sum: "case when"}', "tails.sum", "is not an SQL expression"
    ),
    "measure of an unknown column": pipeline(
        TAILS, "tails: {sum: tail_num}", "tails.sum", "'tail_num' is not a column"
    ),
    "measure of a statement": pipeline(TAILS, "tails: {sum: drop table x}", "tails.sum", "must be one SQL expression"),
    "measure of an aggregate": pipeline(TAILS, "tails: {sum: max(flight)}", "tails.sum", "an expression of one row"),
    "key twice": pipeline("keys: [carrier, origin]", "keys: [carrier, carrier]", "keys[1]", "occurs twice"),
    "unknown key column": pipeline(
        "keys: [carrier, origin]", "keys: [carriers]", "keys[0]", "'carriers' is not a column"
    ),
    "no keys": pipeline("keys: [flight_id]", "keys: []", "flight_status.keys", "at least one column"),
    "no window and no keys": pipeline(
        f"{HOUR}\n    keys: [carrier, origin]", "keys: []", "carrier_hours.keys", "a window"
    ),
    "partition of another column": pipeline(
        "partition: substring(flight_id, 1, 7)", "partition: origin", "flight_status.partition", "over flight_id alone"
    ),
    "partition that does not parse": pipeline(
        "partition: substring(flight_id, 1, 7)", "partition: substring(flight_id, 1", "partition", "is not an SQL"
    ),
    "unknown latest column": pipeline("status: kind", "status: kin", "columns.status", "'kin' is not a column"),
    "unknown touched_by": pipeline(
        "touched_by: kind =", "touched_by: kinds =", "touched_by", "'kinds' is not a column"
    ),
    "unknown kind of gold": pipeline("kind: latest", "kind: newest", "gold.flight_status.kind", "'additive', 'latest'"),
    "gold table of another dataset": pipeline(
        "  worst_delays:", "  weather_days:", "gold.weather_days", "dataset weather"
    ),
    "query outside the folder": pipeline(
        "query: gold/worst_delays.sql", "query: ../weather/x.sql", "worst_delays.query", "inside the dataset's folder"
    ),
    "query that is not there": pipeline(
        "query: gold/worst_delays.sql", "query: gold/best.sql", "worst_delays.query", "there is no file"
    ),
    "query of two statements": Row(
        QUERY, "where rank <= 10", "where rank <= 10; drop table x", "", "one query", "select day"
    ),
    "query that does not parse": Row(QUERY, "as ranked", "as ranked where where", "", "is not SQL of Spark"),
    "query of an unknown column": Row(QUERY, "where kind", "where kinds", "", "'kinds' is not a column", "select day"),
    "query without its grain": Row(
        QUERY, "select day, origin, rank", "select origin, rank", "", "must begin with day, origin", "select origin"
    ),
    "query of another table": Row(QUERY, "from silver", "from bronze", "", "reads silver alone", "select day"),
    "reference with an unknown type": pipeline("year: integer", "year: text", "columns.year", "'string', 'integer'"),
    "reference with unknown keys": pipeline(
        "keys: [faa]", "keys: [iata]", "airports.keys", "must be columns of the table"
    ),
    "reference with a path as its name": pipeline("  planes:", "  '../x':", "reference.../x", "must be lower-case"),
    "silver.py that does not parse": Row(SILVER, "STAGES = {", "STAGES = = {", "", "SyntaxError"),
    "silver.py without silver()": Row(SILVER, "def silver(", "def gold(", "", "must define a function", '"""`silver'),
    "silver.py without a reference table": Row(
        SILVER,
        ", planes: DataFrame)",
        ")",
        "",
        "must have the parameters accepted, airlines, airports, planes",
        "def silver",
    ),
    "silver.py that imports what is missing": Row(
        SILVER, "from pyspark.sql import DataFrame", "from nosuch import DataFrame", "", "imports nosuch, which is not"
    ),
    "silver.py with a relative import": Row(
        SILVER, "from pyspark.sql import DataFrame", "from .x import DataFrame", "", "imports relatively"
    ),
}


def edited(settings: Settings, row: Row) -> Path:
    path = settings.datasets / "flights" / row.file
    text = path.read_text("utf-8")
    assert row.old in text
    path.write_bytes(text.replace(row.old, row.new, 1).encode("utf-8", "surrogateescape"))
    return path


@pytest.mark.parametrize("case", ROWS)
def test_refusal_names_file_line_key_and_reason(settings: Settings, case: str) -> None:
    assert_refused(settings, ROWS[case])


def assert_refused(settings: Settings, row: Row) -> None:
    path = edited(settings, row)
    problems = [found for found in dataset_problems(settings, "flights") if row.words in found.why]
    assert problems, [str(found) for found in dataset_problems(settings, "flights")]
    found = problems[0]
    lines = path.read_bytes().decode("utf-8", "surrogateescape").splitlines()
    marker = row.line or row.new.splitlines()[-1].strip()
    assert found.file == path
    assert marker in lines[found.line - 1], (found, marker)
    assert found.key.endswith(row.key)
    with pytest.raises(DeclarationRefused, match=f"{row.file}:{found.line}"):
        checked_dataset(settings, "flights")


@pytest.mark.parametrize("name", ["flights", "weather"])
def test_shipped_dataset_has_no_problem(settings: Settings, name: str) -> None:
    assert dataset_problems(settings, name) == []


def test_all_problems_of_a_folder_are_listed_together(settings: Settings) -> None:
    for case in ("boolean as a bound", "topic of dots", "no partitions", "negative length"):
        edited(settings, ROWS[case])
    with pytest.raises(DeclarationRefused) as refused:
        load_dataset("flights", settings.datasets / "flights")
    assert [found.key.rpartition(".")[2] for found in refused.value.problems] == [
        *("minimum", "minLength", "topic", "partitions")
    ]
    assert "4 problems:" in str(refused.value)


def test_unknown_keys_hide_no_other_problem(settings: Settings) -> None:
    for case in ("unknown key of a column", "boolean as a bound", "unknown key of the pipeline", "no partitions"):
        edited(settings, ROWS[case])
    (settings.datasets / "flights" / SILVER).write_text("def silver(", "utf-8")
    found = " ".join(map(str, dataset_problems(settings, "flights")))
    for words in ("colour: is not a known", "is True", "late: is not a known", "partitions: must be", "SyntaxError"):
        assert words in found


def test_problems_of_several_datasets_are_listed_together(settings: Settings) -> None:
    edited(settings, ROWS["no partitions"])
    (settings.datasets / "weather" / SILVER).write_text("def silver(accepted)", "utf-8")
    with pytest.raises(DeclarationRefused) as refused:
        validate_datasets(settings, ["flights", "weather"])
    assert {found.file.parent.name for found in refused.value.problems} == {"flights", "weather"}


@pytest.mark.parametrize("name", ["my data", "my-events", "Événement", "a+b", "2013"])
def test_misnamed_folder_is_one_refusal_and_leaves_the_others_alone(settings: Settings, name: str) -> None:
    shutil.copytree(settings.datasets / "weather", settings.datasets / name)
    assert dataset_names(settings) == ["flights", "weather"]
    (problem,) = misnamed_folders(settings)
    assert "must be lower-case letters" in problem.why
    assert problem.file.name == name
    with pytest.raises(DeclarationRefused, match="rename the folder"):
        declared_dataset(settings, name)
    assert dataset_problems(settings, "weather") == []


@pytest.mark.parametrize(
    "case",
    [
        *("boolean as a bound", "negative length", "duplicate key of a bound", "no partitions"),
        *("window named as a column", "time without zone", "pattern with nested quantifiers"),
        *("query of two statements", "field of another column in another case"),
    ],
)
def test_release_of_an_earlier_version_is_read_though_it_breaks_a_newer_rule(settings: Settings, case: str) -> None:
    edited(settings, ROWS[case])
    folder = settings.datasets / "flights"
    release = load_dataset("flights", folder, strict=False).release
    shutil.copytree(folder, snapshot_path(settings, "flights", release))
    assert released_dataset(settings, "flights", release).release == release
    with pytest.raises(DeclarationRefused):
        checked_dataset(settings, "flights")


def test_broken_folder_is_not_snapshotted(settings: Settings) -> None:
    edited(settings, ROWS["no partitions"])
    with pytest.raises(DeclarationRefused):
        snapshot_dataset(settings, "flights")
    assert not snapshot_path(settings, "flights", "x").parent.exists()


def test_contract_check_lists_all_problems_and_exits_1(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(settings, ROWS["no partitions"])
    edited(settings, ROWS["negative length"])
    shutil.copytree(settings.datasets / "weather", settings.datasets / "my data")
    monkeypatch.setenv("HEADRACE_DATASETS", str(settings.datasets))
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    monkeypatch.setitem(sys.modules, "open_data_contract_standard.model", None)
    load_settings.cache_clear()
    try:
        result = CliRunner().invoke(app, ["contract", "check"])
    finally:
        load_settings.cache_clear()
    assert result.exit_code == 1
    for words in (
        "partitions: must be from 1",
        "minLength: must be 0",
        "my data:1",
        "open_data_contract_standard is not installed",
    ):
        assert words in result.output
