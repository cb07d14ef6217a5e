"""`headrace try`: where the sample is computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from include.ground.settings import Settings
from spark_jobs.jobs import sample_job


def test_no_cluster_takes_part_in_a_sample(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[Settings]()
    site = settings.model_copy(update={"spark_master": "spark://host:7077", "backend": "spark"})
    monkeypatch.setattr(sample_job, "declared_dataset", lambda *_: None)
    monkeypatch.setattr(sample_job, "begin_session", lambda own, _: lambda: opened.append(own))

    sample_job.try_samples(site, "flights", "once")
    assert [(each.spark_master, each.backend) for each in opened] == [("", "local")]


class Stopped(Exception):
    """The watching process was ended."""


def test_an_edit_is_tried_again_and_a_failed_round_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silver, sample = tmp_path / "orders/silver.py", tmp_path / "sample.jsonl"
    silver.parent.mkdir()
    silver.write_text("right", "utf-8")
    sample.write_text("{}", "utf-8")
    edited, rounds = iter((silver, silver, sample)), list[str]()
    words = iter(("wrong", "right again", "[]"))

    def act() -> None:
        rounds.append(silver.read_text("utf-8") + sample.read_text("utf-8"))
        if "wrong" in rounds[-1]:
            raise ZeroDivisionError("division by zero")

    def edit(_: float) -> None:
        if (path := next(edited, None)) is None:
            raise Stopped
        path.write_text(next(words), "utf-8")

    with pytest.raises(Stopped):
        sample_job.watch([silver.parent, sample], act, edit)

    assert rounds == ["right{}", "wrong{}", "right again{}", "right again[]"]
    assert [json.loads(line)["watched"] for line in capsys.readouterr().out.splitlines()] == [
        "",
        "division by zero",
        "",
        "",
    ]
