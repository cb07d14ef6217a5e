"""Records of year 1, the earliest time that a column can hold: they pass every layer like any others."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from small_events import observation
from small_release import small_release

from include.ground.settings import CLONE, Settings


@pytest.mark.extended
def test_records_of_year_one_pass_every_layer(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "weather"
    shutil.copytree(CLONE / "include/datasets/weather", folder)
    for name, old, new in [
        ("contract.yaml", '        logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}\n', ""),
        ("pipeline.yaml", "horizon: 3 days", "horizon: 7 days"),
    ]:
        text = (folder / name).read_text("utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), "utf-8")
    release = small_release(spark, settings, "weather", folder)
    release.take([observation("0001-01-06T00", temp="1"), observation("2013-02-01T05", temp="2")])
    release.take([observation("0001-01-06T00", temp="3"), observation("0001-01-05T00", temp="4")])
    times = [datetime(1, 1, 6, tzinfo=UTC), datetime(2013, 2, 1, 5, tzinfo=UTC), datetime(1, 1, 5, tzinfo=UTC)]
    assert release.silver()["observed_at"].to_list() == times
    assert release.rejected()["disposition"].to_list() == ["duplicate"]
    days = release.read("gold.weather_days").sort("day")
    assert days["day"].to_list() == [date(1, 1, 5), date(1, 1, 6), date(2013, 2, 1)]
