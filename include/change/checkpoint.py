"""Evaluates table rules with Great Expectations on pandas frames, in bounded memory, with the counts of whole tables.

Pandas keeps a text in some 100 bytes, and Great Expectations copies columns, so no frame has all rows of a text column
unless a rule needs them. A rule about each row by itself sees `CHUNK` rows at a time. Uniqueness needs only the rows
whose values have the hash of others, also in chunks; a rule about distinct values needs only the distinct values.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, reduce
from operator import and_
from typing import Any

from include.change.contract_check import expectation
from include.declare.contract_rules import Rule, RuleResult, referenced_columns
from include.declare.row_expectations import ROW_EXPECTATIONS
from include.ground.optional_packages import import_optional
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import memory_database
from include.read.published_tables import BATCH, bounded_reader

CHUNK = 200_000
"""Rows of a frame for rules about single rows."""
REPEATED = 50_000
"""Rows of a frame for uniqueness, of which Great Expectations keeps several copies if they are not unique."""
HASHES = 4_000_000
"""Rows whose hashes are in memory at once; a table with more is read several times."""
MEMORY = "150MB"
"""Of DuckDB; it spills what does not fit."""
EXACT_IN_DOUBLE = 2**53
# Decimals of 15 digits are distinct as doubles.
EXACT_DIGITS = 10**15
UNIQUE = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")
DISTINCT = (
    "expect_column_distinct_values_to_be_in_set",
    "expect_column_distinct_values_to_contain_set",
    "expect_column_distinct_values_to_equal_set",
    "expect_column_unique_value_count_to_be_between",
)
"""Rules whose verdict is the same for a table with each value once."""
ROW_COUNT = ("expect_table_row_count_to_be_between", "expect_table_row_count_to_equal")


class ExactDecimal(Decimal):
    """A decimal that equals the float of its shortest text: 0.1 of a rule's set is a float, and no decimal's value."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(Decimal(repr(other)) if isinstance(other, float) else other)

    def __hash__(self) -> int:
        return hash(float(self))


@dataclass(frozen=True)
class Frame:
    """A frame; and how many `others` the table has, which satisfy the rule, and how many of these are `nulls`."""

    rows: Any
    others: int = 0
    nulls: int = 0


def frames_of(rows: Any, rule: Rule) -> Iterator[Frame]:
    """Yield the frames whose results together are the rule's result for a pyarrow Dataset; at least one."""
    columns = [name for name in rows.schema.names if name in referenced_columns(rule)]
    is_complete = set(columns) == set(referenced_columns(rule))
    if is_complete and rule.expectation in ROW_EXPECTATIONS:
        yield from _chunks(rows, columns)
    elif is_complete and _is_unconditional(rule, UNIQUE) and _has_texts(rows, columns):
        yield from _repeated(rows, list(rule.columns))
    elif is_complete and _is_unconditional(rule, DISTINCT) and _has_texts(rows, columns):
        yield _distinct(rows, columns)
    elif not columns and rule.expectation in ROW_COUNT:
        yield Frame(_counted(rows))
    else:
        yield Frame(to_pandas(rows.to_table(columns=columns or rows.schema.names[:1]), columns))


def _is_unconditional(rule: Rule, expectations: Sequence[str]) -> bool:
    return rule.expectation in expectations and rule.condition is None and "ignore_row_if" not in rule.written


def _chunks(rows: Any, columns: Sequence[str]) -> Iterator[Frame]:
    import pyarrow as pa

    pending: list[Any] = []
    is_empty = True
    for batch in bounded_reader(rows, columns):
        pending.append(batch)
        if sum(each.num_rows for each in pending) >= CHUNK:
            yield Frame(to_pandas(pa.Table.from_batches(pending), columns))
            pending, is_empty = [], False
            # Great Expectations' objects are cycles: without this, the frames of many chunks stay.
            gc.collect()
    if pending or is_empty:
        schema = pa.schema([rows.schema.field(name) for name in columns])
        yield Frame(to_pandas(pa.Table.from_batches(pending, schema), columns))


def _repeated(rows: Any, columns: Sequence[str]) -> Iterator[Frame]:
    """Yield frames of all rows whose values have the hash of others; a value has none of its rows alone in a frame.

    Rows without any value do not count; a null next to a value does.
    """
    import pyarrow.compute as pc

    is_null = reduce(and_, (pc.field(name).is_null() for name in columns))
    others, without = rows.count_rows(), rows.count_rows(filter=is_null)
    for part in _by_value(_rows_with(_repeated_hashes(rows, columns), rows, columns), columns):
        others -= part.num_rows
        yield Frame(to_pandas(part, columns))
    yield Frame(to_pandas(rows.schema.empty_table(), columns), others, without)


def _repeated_hashes(rows: Any, columns: Sequence[str]) -> Any:
    """Return the hashes that several rows have, as a numpy array; HASHES of them at a time are in memory."""
    import numpy as np

    parts = 1 + rows.count_rows() // HASHES
    found = []
    for part in range(parts):
        chosen = f"select _mark from ({_hashed(columns)}) where _mark % {parts} = {part}"
        with _database_of(rows, columns) as database:
            batches = [batch.column(0).to_numpy() for batch in database.sql(chosen).to_arrow_reader(CHUNK)]
        marks = np.concatenate([np.empty(0, np.uint64), *batches])
        del batches
        marks.sort()
        found.append(np.unique(marks[1:][marks[1:] == marks[:-1]]))
    return np.concatenate(found)


def _rows_with(hashes: Any, rows: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the rows that have one of these hashes, in the order of hashes and values, with the hash `_mark`."""
    import pyarrow as pa

    if not len(hashes):
        return
    with _database_of(rows, columns) as database:
        database.register("repeated", pa.table({"_mark": hashes}))
        found = f"from ({_hashed(columns)}) semi join repeated using (_mark) order by _mark, {_names(columns)}"
        for batch in database.sql(found).to_arrow_reader(BATCH):
            yield pa.Table.from_batches([batch])


def _by_value(tables: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Yield tables of about REPEATED rows; a value's rows are in one of them, or two or more in each."""
    import pyarrow as pa

    pending: list[Any] = []
    for table in tables:
        pending.append(table)
        if sum(each.num_rows for each in pending) >= REPEATED:
            rows = pa.concat_tables(pending).combine_chunks()
            end = _complete(rows, columns)
            if end:
                yield rows.slice(0, end)
            pending = [rows.slice(end)]
    if pending:
        yield pa.concat_tables(pending)


def _complete(rows: Any, columns: Sequence[str]) -> int:
    """Return how many rows may end a table: all before the last hash; of one value alone, all but two."""
    marks = rows["_mark"].to_numpy()
    end = int(marks.searchsorted(marks[-1]))
    values = rows.select(list(columns))
    # Of two rows with NaN, pandas' frames are equal, Arrow's tables are not.
    is_one = values.slice(0, 1).to_pandas().equals(values.slice(rows.num_rows - 1).to_pandas())
    return rows.num_rows - 2 if not end and is_one else end


def _hashed(columns: Sequence[str]) -> str:
    """Return SQL for the rows that have a value, with their hash."""
    nulls = " and ".join(f"{sql_identifier(name)} is null" for name in columns)
    return f"select *, hash({_names(columns)}) as _mark from rows where not ({nulls})"


def _distinct(rows: Any, columns: Sequence[str]) -> Frame:
    with _database_of(rows, columns) as database:
        return Frame(to_pandas(database.sql("select distinct * from rows").to_arrow_table(), columns))


@contextmanager
def _database_of(rows: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Open a database with a view `rows` of some columns, to be read once."""
    with memory_database(MEMORY) as database:
        database.register("rows", bounded_reader(rows, columns))
        yield database


def _counted(rows: Any) -> Any:
    """Return a frame with as many rows, whose values are not read."""
    import numpy as np
    import pandas as pd

    return pd.DataFrame({name: np.zeros(rows.count_rows(), np.int8) for name in rows.schema.names[:1]})


def _has_texts(rows: Any, columns: Sequence[str]) -> bool:
    import pyarrow as pa

    kinds = [rows.schema.field(name).type for name in columns]
    return any(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(sql_identifier, columns))


def to_pandas(table: Any, columns: Iterable[str]) -> Any:
    """Return these columns of a pyarrow table as a pandas frame; the first column when it has none of them.

    Integers and decimals become floats if each of them is exact as a float, because pandas has no null for them (NaN
    here). Columns with larger ones stay as they are, with None. Strings and booleans keep None; times are in UTC.
    """
    import pyarrow as pa

    names = table.schema.names
    table = table.select([name for name in names if name in set(columns)] or names[:1])
    for place, field in enumerate(table.schema):
        if pa.types.is_float32(field.type):
            # The double of its shortest text: 0.1 of a rule is no float, and would differ from each.
            shortest = table.column(place).cast(pa.string()).cast(pa.float64())
            table = table.set_column(place, field.name, shortest)
        if pa.types.is_date(field.type):
            # Pandas' own dates are Python objects, which Great Expectations compares with no text.
            table = table.set_column(place, field.name, table.column(place).cast(pa.timestamp("us")))
        if _exact_as_floats(table[place], EXACT_DIGITS if pa.types.is_decimal(field.type) else EXACT_IN_DOUBLE):
            table = table.set_column(place, field.name, table.column(place).cast(pa.float64(), safe=False))
    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        if pa.types.is_decimal(field.type):
            frame[field.name] = frame[field.name].map(ExactDecimal, na_action="ignore")
    return frame


def _exact_as_floats(numbers: Any, limit: int) -> bool:
    """Return whether a column is of integers or decimals that are all, as integers of its scale, within ±`limit`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(numbers.type) or pa.types.is_decimal(numbers.type)):
        return False
    least, most = pc.min_max(numbers).as_py().values()
    scale = numbers.type.scale if pa.types.is_decimal(numbers.type) else 0
    return least is None or bool(max(-least, most).scaleb(scale) < limit if scale else max(-least, most) < limit)


SOURCE = "tables"
KEPT = 20
"""Values that break a rule, as Great Expectations keeps them."""
SAMPLES, LONGEST_SAMPLE = 5, 80
"""Number and length of different ones that are shown."""


def validate_tables(tables: Mapping[str, tuple[Any, Sequence[Rule]]]) -> list[RuleResult]:
    """Evaluate the rules of tables: name → (pyarrow Dataset, rules).

    A rule that Great Expectations cannot evaluate (a missing column) fails with its error as observed value. Raises
    QualityNotInstalled.
    """
    return [result for name, (rows, rules) in tables.items() if rules for result in _validate(name, rows, rules)]


@lru_cache(maxsize=1)
def _context() -> Any:
    # Great Expectations logs each registration at level INFO.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    context = import_optional("great_expectations").get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    # The collection after each chunk would look at all objects of these packages: 0.2 seconds.
    gc.freeze()
    return context


def _validate(name: str, rows: Any, rules: Sequence[Rule]) -> list[RuleResult]:
    source = _context().data_sources.add_or_update_pandas(SOURCE)
    data = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    return [_rule_result(name, rule, _evaluated(data, rows, rule)) for rule in rules]


def _evaluated(data: Any, rows: Any, rule: Rule) -> Any:
    """Return Great Expectations' result of a rule for a whole table."""
    parts, others, nulls = [], 0, 0
    for frame in frames_of(rows, rule):
        batch = data.get_batch(batch_parameters={"dataframe": frame.rows})
        parts.append(batch.validate(expectation(rule), result_format="BASIC"))
        others, nulls = others + frame.others, nulls + frame.nulls
    failed = next((part for part in parts if _errors(part)), None)
    if failed is not None:
        return failed
    return parts[0] if len(parts) == 1 and not others else _merged(parts, rule, others, nulls)


def _merged(parts: Sequence[Any], rule: Rule, others: int, nulls: int) -> Any:
    """Return the result of a rule about rows from those of parts of a table, as `_format_map_output` computes it.

    `others`: further rows, which satisfy the rule; `nulls` of them have no value.
    """
    whole, counted = parts[0], ("element_count", "missing_count", "unexpected_count")
    rows, missing, wrong = (sum(part.result.get(key) or 0 for part in parts) for key in counted)
    rows, missing = rows + others, missing + nulls
    judged = rows - missing
    whole.success = wrong == 0 or not judged or (judged - wrong) / judged >= rule.mostly
    samples = [value for part in parts for value in part.result.get("partial_unexpected_list", ())]
    whole.result |= {
        "element_count": rows,
        "unexpected_count": wrong,
        "unexpected_percent": wrong / judged * 100 if judged else None,
        "partial_unexpected_list": samples[:KEPT],
    }
    if "missing_count" in whole.result:
        whole.result |= {
            "missing_count": missing,
            "missing_percent": missing / rows * 100 if rows else None,
            "unexpected_percent_total": wrong / rows * 100 if rows else None,
            "unexpected_percent_nonmissing": wrong / judged * 100 if judged else None,
        }
    return whole


def _rule_result(table: str, rule: Rule, result: Any) -> RuleResult:
    facts = (table, rule.name, rule.expectation, rule.action, rule.severity)
    broken = dict.fromkeys(str(value)[:LONGEST_SAMPLE] for value in result.result.get("partial_unexpected_list", ()))
    samples = tuple(broken)[:SAMPLES]
    return RuleResult(*facts, passed=bool(result.success), observed=_observed(result), samples=samples)


def _errors(result: Any) -> list[str]:
    return [error["exception_message"] for error in result.exception_info.values() if isinstance(error, dict)]


def _observed(result: Any) -> str:
    if errors := _errors(result):
        return str(errors[0])
    details = result.result
    if details.get("unexpected_count") is not None:
        return f"{details['unexpected_count']:,} of {details.get('element_count', 0):,} rows"
    value = details.get("observed_value")
    if isinstance(value, float) and math.isfinite(value):
        return f"{float(value):,.10g}"
    return "" if value is None else f"{value}"
