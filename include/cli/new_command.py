"""`headrace new`: the first folder of a dataset, inferred from a sample."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from include.cli.option_types import sample_file
from include.declare.dataset_checks import validate_datasets
from include.declare.inferred_dataset import InferredDataset, inferred_dataset
from include.declare.sample_records import RecordSample, file_sample, topic_sample
from include.declare.scaffold import WrittenFolder, refuse_name, write_folder
from include.ground.settings import CLONE, Settings, load_settings
from include.state.broker_address import bootstrap_servers


def new(
    dataset: Annotated[str, typer.Argument(help="The name of the new dataset: its folder and its tables.")],
    sample: Annotated[
        Path | None,
        typer.Option("--from", parser=sample_file, metavar="FILE", help="Infer the dataset from a file of JSON lines."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="The dataset's topic; without --from, infer the dataset from it. (default: DATASET)"),
    ] = None,
) -> None:
    """Write the folder of a new dataset, inferred from a sample: contract, pipeline, silver.py, gold, a case.

    Every guess has a comment. Nothing is started, and no topic is created.
    """

    if sample is None and topic is None:
        raise typer.BadParameter("give a sample: --from FILE.jsonl, or --topic T to read one", param_hint="--from")
    settings = load_settings()
    refuse_name(settings, dataset)
    records = _sample(settings, sample, topic)
    found = inferred_dataset(dataset, topic or dataset, records, datetime.now(UTC))
    written = write_folder(settings, found, records)
    _show(Console(soft_wrap=True), settings, found, written, sample)
    validate_datasets(settings, [dataset])


def _sample(settings: Settings, file: Path | None, topic: str | None) -> RecordSample:
    return file_sample(file) if file is not None else topic_sample(bootstrap_servers(settings), str(topic))


def _show(
    console: Console, settings: Settings, dataset: InferredDataset, written: WrittenFolder, sample: Path | None
) -> None:
    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    line(f"{_relative(written.folder)}: inferred from {dataset.records:,} records of {dataset.origin}")
    for field in dataset.fields:
        facts = [field.type, *([f"read from {field.member}"] if field.member != field.name else [])]
        facts += ["required" if field.required else "optional"]
        facts += ["primary key"] if field.name in dataset.identity else []
        facts += [f"one of {', '.join(field.values)}"] if field.values else []
        facts += [f"seen: {', '.join(field.seen)} (others are accepted too)"] if field.seen else []
        facts += [str(field.form)] if field.form else []
        line(f"  {field.name}: {', '.join(facts)}")
    for name, why in dataset.left_out.items():
        line(f"  left out: {name} {why}")
    for fault, count in dataset.unusual.items():
        line(f"  not considered, unlike nearly all other records: {fault} ({count:,})")
    line(f"event time: {dataset.event_time}; primary key ({', '.join(dataset.identity)}): {dataset.identity_reason}")
    tried = f"headrace try {dataset.name} {sample or ''}".rstrip()
    line(f"next: {tried}   (what contract, silver.py and gold make of it)")
    fed = f"   (reads topic {dataset.topic} from its start)"
    if sample:
        fed = f"; headrace produce --file {_relative(sample)} --topic {dataset.topic} --rate 100"
    line(f"      headrace up {dataset.name}{fed}")


def _relative(path: Path) -> Path:
    return path.relative_to(CLONE) if path.is_relative_to(CLONE) else path
