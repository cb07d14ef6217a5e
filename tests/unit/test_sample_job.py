"""`headrace try`: where the sample is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.ground.settings import Settings
from spark_jobs.jobs import sample_job


def test_no_cluster_takes_part_in_a_sample(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Settings]()

    def run_job(_: str, work: Callable[[Settings], bool]) -> int:
        return int(not work(settings.model_copy(update={"spark_master": "spark://host:7077", "backend": "spark"})))

    monkeypatch.setattr(sample_job, "run_job", run_job)
    monkeypatch.setattr(sample_job, "declared_dataset", lambda *_: None)
    monkeypatch.setattr(sample_job, "begin_session", lambda own, _: lambda: opened.append(own))

    assert sample_job.main(["flights"]) == 0
    assert [(each.spark_master, each.backend) for each in opened] == [("", "local")]
