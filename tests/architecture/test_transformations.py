"""What code on rows may not do: throw on a bad value, leave Spark for Python, or bring data to the driver."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from source_tree import ROOT, Module, calls, code, files, identifiers, imports, modules

# Under ANSI these fail the whole batch for one bad value; each has a form that gives null instead.
THROWING = {
    "to_timestamp": "try_to_timestamp, or text.try_cast('timestamp')",
    "to_timestamp_ltz": "try_to_timestamp",
    "to_timestamp_ntz": "try_to_timestamp",
    "to_number": "try_to_number",
    "to_binary": "try_to_binary",
    "parse_json": "try_parse_json",
    "element_at": "try_element_at, or F.get",
    "url_decode": "try_url_decode",
    "make_timestamp": "try_make_timestamp",
    "make_interval": "try_make_interval",
    "make_date": "try_cast('date')",
    "next_day": "no next_day",
    "conv": "no conv",
    "assert_true": "a rule of the contract",
    "raise_error": "a rule of the contract",
    "decode": "F.is_valid_utf8 first",
    "astype": "try_cast",
    "cast": "try_cast",
}
# What a cast may give that never throws: any scalar or binary has a text, and these are of our own literals.
HARMLESS_CALLS = {
    ("cast", "'string'"): "everything has a text",
    ("cast", "'binary'"): "every text has bytes; of numbers it is refused when the query is planned",
    ("cast", "REASONS"): "an array that we have built ourselves",
    ("conv", "F.hex(F.substring(value, 2, 4))"): "four bytes fit into 64 bits",
}
"""By function and first argument."""
LEAVING = dict.fromkeys(
    ["udf", "udtf", "pandas_udf", "arrow_udf", "mapInPandas", "mapInArrow", "applyInPandas", "applyInArrow"]
    + ["foreach", "foreachPartition", "mapPartitions", "parallelize", "transformWithStateInPandas"],
    "rows stay in Spark: a Python function is slower by far, and would pickle code into the plan",
)
LEAVERS = {
    ("spark_jobs/layers/gold_rows.py", "applyInArrow"): "a fold that is declared in Python (include/declare/adr-0006)",
    ("spark_jobs/backends/spark/ingest.py", "mapInArrow"): "files have one reader, which makes columns of Arrow",
}
"""By module and call, what a dataset's declaration asks for."""
BRINGING = dict.fromkeys(
    ["collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "tail", "show", "isEmpty"],
    "the driver has no room for rows: count from Parquet footers, or let Spark write",
)
BRINGERS = {
    ("spark_jobs/backends/local/prepared_query.py", "toArrow"),
    ("spark_jobs/backends/spark/figures.py", "collect"),
    # Arrow's and numpy's, over rows that are in this process.
    ("spark_jobs/backends/local/arrow_files.py", "take"),
    ("spark_jobs/backends/local/identities.py", "take"),
}
SQL_CAST = re.compile(
    r"(?<!try_)\bcast\s*\(|(?<![:'\"])::\s*\w|\b(?:to_timestamp|to_number|parse_json)\s*\(|\w\s*/\s*\w"
)


def transformations() -> list[Module]:
    return [m for m in modules() if m.is_transformation or m.path.startswith("spark_jobs/contract/")]


def data_plane() -> list[Module]:
    return [m for m in code() if m.is_transformation or m.path.startswith("spark_jobs/")]


def called(module: Module, names: dict[str, str]) -> Iterator[tuple[str, ast.Call, str]]:
    """Calls of these methods or functions, with the function they stand in."""
    for function, call in calls(module):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in names:
            yield function, call, name


def test_transformations_call_no_function_that_fails_on_a_value() -> None:
    assert [
        f"{m.path}:{call.lineno} {name} fails the whole batch for one bad value; use {THROWING[name]}"
        for m in transformations()
        for _, call, name in called(m, THROWING)
        if (name, ast.unparse(call.args[0])) not in HARMLESS_CALLS
    ] == []


def test_sql_calls_no_function_that_fails_on_a_value() -> None:
    """The datasets' SQL, and the expressions in their YAML."""
    found = []
    for path in [p for p in files() if p.startswith("include/datasets/") and p.endswith((".sql", "pipeline.yaml"))]:
        for number, line in enumerate((ROOT / path).read_text("utf-8").splitlines(), 1):
            sql = line.split(" #")[0] if path.endswith(".yaml") else line
            if SQL_CAST.search(sql.replace("gold/", "")):
                found.append(f"{path}:{number} can fail the whole batch for one bad value; use the try_ form: {sql}")
    assert found == []


def test_transformations_run_no_python_on_rows() -> None:
    assert [
        f"{m.path}:{call.lineno} {function} calls {name}: {LEAVING[name]}"
        for m in data_plane()
        for function, call, name in called(m, LEAVING)
        if (m.path, name) not in LEAVERS
    ] == []


def test_prepared_queries_alone_bring_rows_to_the_driver() -> None:
    """A slot takes 48 MB of rows (spark_jobs/layers/adr-0013). Modules without Spark have no rows of it to bring."""
    assert [
        f"{m.path}:{call.lineno} {function} calls {name}: {BRINGING[name]}"
        for m in data_plane()
        if any(target.startswith("pyspark") for _, target in imports(m))
        for function, call, name in called(m, BRINGING)
        if (m.path, name) not in BRINGERS
    ] == []


def test_transformations_use_no_rdd() -> None:
    assert [
        f"{m.path}:{node.lineno} uses an RDD: {LEAVING['udf']}"
        for m in data_plane()
        for node in ast.walk(m.tree)
        if isinstance(node, ast.Attribute) and node.attr == "rdd"
    ] == []


def test_transformations_catch_no_errors() -> None:
    """`except:` never; `except BaseException:` raises again; `except Exception:` too, or says in its line why not."""
    found = []
    for module in code():
        lines = (ROOT / module.path).read_text("utf-8").splitlines()
        for node in [n for n in ast.walk(module.tree) if isinstance(n, ast.ExceptHandler)]:
            caught = "" if node.type is None else ast.unparse(node.type)
            reason = bool(re.search(r"noqa: BLE001\s+\(\w", lines[node.lineno - 1]))
            again = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
            if (
                not caught
                or (caught == "BaseException" and not again)
                or (caught == "Exception" and not reason | again)
            ):
                found.append(f"{module.path}:{node.lineno} except {caught}: name the errors, or raise again")
    assert found == []


def test_transformations_do_not_distinguish_stream_and_batch() -> None:
    """An `if streaming:` in a transformation means that the design failed (docs/architecture.md §2)."""
    strange = re.compile(r"isStreaming|readStream|writeStream|withWatermark|dropDuplicates|\bstreaming\b")
    found = [m.path for m in transformations() if any(map(strange.search, identifiers(m)))]
    assert found == []


def test_no_streaming_watermark_is_used() -> None:
    """No record is ever dropped for its time."""
    assert [m.path for m in data_plane() if "withWatermark" in identifiers(m)] == []
