"""A comparison as display values: the page, the terminal and the Markdown of an approval show the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from include.change.compare import LESS_EXACT, type_word
from include.declare.contract_rules import RuleResult
from include.ground.render_template import render_html, render_markdown
from include.plans.comparison import ColumnProfile, Comparison, MeasureChange, Sample, TableComparison

MANIFOLD = 1.5
DIFFERENCES = {"added": "new table", "removed": "removed table", "rekeyed": "rekeyed"}


@dataclass(frozen=True)
class StatisticView:
    """A statistic of one column that changed. `bar`: from -1 to 1, relative to the table's largest change."""

    column: str
    statistic: str
    before: str
    after: str
    change: str = ""
    bar: float | None = None

    def __str__(self) -> str:
        return f"{self.statistic} {self.before} → {self.after}{f' ({self.change})' if self.change else ''}"


@dataclass(frozen=True)
class SampleView:
    """A differing key, and the lines of its rows; of one row that became another only the columns that differ."""

    key: str
    before: Sequence[str]
    after: Sequence[str]


@dataclass(frozen=True)
class SampleGroup:
    """The first keys of a kind of change (added, missing, changed), and how many there are."""

    kind: str
    count: int
    samples: Sequence[SampleView]


@dataclass(frozen=True)
class TableView:
    """A table's comparison as display values."""

    of: TableComparison

    @property
    def difference(self) -> str:
        """What differs: columns alone, a share of keys, how many times as many rows; or a new or removed table."""
        table = self.of
        if table.presence in DIFFERENCES:
            return DIFFERENCES[table.presence]
        if table.is_equal:
            return "equal"
        if not table.differing:
            return "columns"
        if table.share <= 1:
            return f"{100 * table.share:.2f} %"
        if table.old_rows and (growth := table.new_rows / table.old_rows) >= MANIFOLD:
            return f"×{growth:.3g} rows"
        return f"{table.differing:,} keys, of {table.old_keys:,} before"

    @cached_property
    def columns(self) -> list[tuple[str, str]]:
        """The columns that only one side has, or that have another type, with what is different."""
        return list(_columns(self.of))

    @cached_property
    def statistics(self) -> list[StatisticView]:
        return [*_statistics(self.of.measures), *_profile_statistics(self.of)]

    @cached_property
    def samples(self) -> list[SampleGroup]:
        return [
            SampleGroup(kind, getattr(self.of, kind), [_sample(sample) for sample in samples])
            for kind, samples in self.of.samples.items()
            if kind in ("added", "missing", "changed")
        ]

    @property
    def details(self) -> list[tuple[float, str]]:
        """What differs, a line for each column and kind of change, and how much it matters to a reviewer."""
        name = self.of.name
        columns = [(math.inf, f"{name}.{column}: {change}") for column, change in self.columns]
        samples = [(0.0, f"{name}, first {each.kind}: {each.samples[0].key}") for each in self.samples if each.samples]
        by_column: dict[str, list[StatisticView]] = {}
        for each in self.statistics:
            by_column.setdefault(each.column, []).append(each)
        statistics = [
            (max(abs(each.bar or 0.0) for each in found), f"{name}.{column}: {'; '.join(map(str, found))}")
            for column, found in by_column.items()
        ]
        return [*columns, *statistics, *samples]

    @property
    def has_details(self) -> bool:
        """Whether rows of both sides were matched and differ."""
        return bool(self.columns or self.statistics or self.samples)


@dataclass(frozen=True)
class ComparisonView:
    """A comparison for people; `checks`: rules that block first, then those that did not pass.

    `dependants`: what the release does to those that read its tables, each in a line; those that break come first.
    """

    verdict: str
    summary: str
    tables: Sequence[TableView]
    checks: Sequence[RuleResult]
    dependants: Sequence[str]


def comparison_view(comparison: Comparison) -> ComparisonView:
    """Return the display values of a comparison."""
    return ComparisonView(
        comparison.verdict,
        f"both at bronze batch {comparison.batch}; threshold {100 * comparison.threshold:g} % of the keys",
        [TableView(table) for table in comparison.tables],
        sorted(comparison.checks, key=lambda check: (not check.blocks, check.passed is True)),
        [effect.sentence for effect in sorted(comparison.dependants, key=lambda effect: not effect.faults)],
    )


def _change(measure: MeasureChange) -> str:
    """Return the change of a sum; beyond a doubling as a factor."""
    percent, old, new = measure.percent, measure.old_sum, measure.new_sum
    if percent is None or old is None or new is None:
        return ""
    return f"{percent:+.3g} %" if -100 <= percent <= 100 else f"×{new / old:.3g}"


def _columns(table: TableComparison) -> Iterator[tuple[str, str]]:
    yield from ((name, "new column") for name in table.columns_added)
    yield from ((name, "removed column") for name in table.columns_removed)
    yield from ((name, f"{old} → {new}") for name, (old, new) in table.retyped.items())
    for name, types in table.widened.items():
        how = f", compared as {type_word(LESS_EXACT)}" if types[0] == LESS_EXACT else ""
        yield name, "type widened {} → {}".format(*map(type_word, types)) + how


def _statistics(measures: Sequence[MeasureChange]) -> list[StatisticView]:
    """Return the sums and shares of nulls that changed."""
    largest = max((abs(m.percent) for m in measures if m.percent is not None), default=0.0)
    found = []
    for m in measures:
        if m.has_other_sum:
            bar = None if m.percent is None or not largest else m.percent / largest
            old, new = _number(m.old_sum), _number(m.new_sum)
            found.append(StatisticView(m.column, "sum", old, new, _change(m), bar))
        if m.old_nulls != m.new_nulls:
            old, new = (f"{100 * share:.2f} %" for share in (m.old_nulls, m.new_nulls))
            found.append(StatisticView(m.column, "nulls", old, new))
    return found


def _profile_statistics(table: TableComparison) -> Iterator[StatisticView]:
    """Yield the profiles of new and changed columns before and after, without the statistics of the sums."""
    numeric = {measure.column for measure in table.measures}
    for change in table.profiles:
        if change.column in table.keys:
            continue
        before, after = _profile_values(change.old), _profile_values(change.new)
        for statistic in after or before:
            shown = statistic in ("sum", "nulls") and change.column in numeric
            old, new = before.get(statistic, "–"), after.get(statistic, "–")
            if not shown and old != new:
                yield StatisticView(change.column, statistic, old, new)


def _profile_values(profile: ColumnProfile | None) -> dict[str, str]:
    if profile is None:
        return {}
    top = ", ".join(f"{value} ({count:,})" for value, count in profile.top)
    return {
        "nulls": f"{profile.nulls:,} of {profile.rows:,}",
        "distinct": f"{profile.distinct:,}",
        "min": profile.low or "–",
        "max": profile.high or "–",
        **({"sum": profile.total or "–"} if profile.total is not None else {}),
        "top values": top or "–",
    }


def _sample(sample: Sample) -> SampleView:
    old, new = sample.old, sample.new
    if len(old) == len(new) == 1:
        differing = [name for name in old[0] if old[0][name] != new[0].get(name)]
        old, new = ([{name: row.get(name) for name in differing} for row in rows] for rows in (old, new))
    return SampleView(_line(sample.key), [_line(row) for row in old], [_line(row) for row in new])


def _line(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.10g}"


def comparison_page(title: str, comparison: Comparison) -> str:
    """Return a comparison as one HTML page."""
    return render_html("comparison.html.j2", title=title, view=comparison_view(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown, with at most three samples of each kind of change."""
    return render_markdown("comparison.md.j2", view=comparison_view(comparison))
