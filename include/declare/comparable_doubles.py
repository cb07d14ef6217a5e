"""How sums of doubles are compared: by their first digits, since the last depend on the order of the rows.

Only older releases have such sums; newer ones may not declare one.
"""

from __future__ import annotations

from include.ground.sql_quoting import sql_identifier

DIGITS = 9
SUM_ERROR = 1e-9
"""The relative difference up to which two sums are equal."""


def rounded_sql(column: str) -> str:
    """Return DuckDB's SQL of a column of doubles as the text of its first digits; -0.0 is 0.0."""
    return f"format('{{:.{DIGITS - 1}e}}', {sql_identifier(column)} + 0.0)"
