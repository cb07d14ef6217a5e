"""What the cases share: a way to tell a story."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession
from small_release import Record, small_release
from stories import Story, Tell

from include.settings import Settings


@pytest.fixture(scope="module")
def tell(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tell:
    """Take the batches of a dataset, each in a run of its own."""

    def told(dataset: str, batches: Sequence[Sequence[Record]]) -> Story:
        story = Story(small_release(spark, Settings(state=tmp_path_factory.mktemp("a story")), dataset))
        for records in batches:
            story.go_on(records)
        return story

    return told
