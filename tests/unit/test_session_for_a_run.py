"""Sessions for a small and for a large run: the same rows in the same types."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from spark_jobs.backends.local.duckdb_session import SMALL_RUN, DuckSession, session_for

SELECTED = """
select n, n::decimal(18, 3) as price, if(n % 7 = 0, null, 'row ' || n) as name,
       to_timestamp(n) as at, date '2013-01-01' + n::integer as day, [n, null] as parts, encode(n::varchar) as bytes
from numbers order by n
"""


def _rows(count: int, run: int) -> pa.Table:
    with session_for(run) as duck:
        duck.view_arrow("numbers", pa.table({"n": pa.array(range(count), pa.int64())}))
        return duck.arrow(SELECTED)


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_a_small_and_a_large_run_have_the_same_rows_and_types(count: int) -> None:
    small, large = _rows(count, SMALL_RUN), _rows(count, SMALL_RUN + 1)
    assert small.schema == large.schema
    assert small.equals(large)
    assert small.num_rows == count


def test_a_small_run_uses_the_calling_thread_and_a_large_one_all_cores() -> None:
    def threads(duck: DuckSession) -> int:
        return int(duck.rows("select current_setting('threads')")[0][0])

    with session_for(SMALL_RUN) as small, session_for(SMALL_RUN + 1) as large:
        assert threads(small) == 1
        assert threads(large) == threads(DuckSession(duckdb.connect()))
