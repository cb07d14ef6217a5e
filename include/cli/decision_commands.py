"""`headrace rejected fix`, `discard` and `reinstate`: decisions on rejected records."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from include.change.reinstate import Author, ReinstateParameters, discard, fix, plan_reinstate
from include.cli.exit_codes import FAILED
from include.cli.option_types import AsJson, Offset, Offsets, Partition, validated
from include.cli.plan_command import THRESHOLD, YES, approver, current_user, plan_and_run
from include.cli.rejected_command import Column, Reason, Since, Status, Until, app
from include.ground.settings import load_settings
from include.read.rejected_records import RejectedFilter

Dataset = Annotated[str, typer.Option("--dataset", help="The dataset.")]
Why = Annotated[str, typer.Option("--why", help="The reason; stored with the decision.")]


@app.command("fix")
def fix_rejected(
    dataset: Dataset,
    partition: Partition,
    offset: Offset,
    why: Why,
    payload: Annotated[str | None, typer.Option(help="The whole record, corrected.")] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            allow_dash=True,
            help="A file with the payload; - for standard input.",
        ),
    ] = None,
) -> None:
    """Store a corrected payload for one record, to be validated instead of the original; bronze is unchanged."""

    if (payload is None) == (payload_file is None):
        raise typer.BadParameter("give one of --payload and --payload-file")
    data = payload.encode() if payload is not None else _read(payload_file)
    new = fix(load_settings(), dataset, {(partition, offset): data}, _author(why))
    console = Console()
    console.print("fixed" if new else "the record already has this fix", highlight=False)
    again = f"--dataset {dataset} --offsets '{{\"{partition}\": [{offset}, {offset + 1}]}}'"
    console.print(f"next: headrace rejected reinstate {again}", highlight=False, markup=False, soft_wrap=True)


@app.command("discard")
def discard_rejected(
    dataset: Dataset,
    why: Why,
    reason: Reason = None,
    column: Column = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    yes: Annotated[bool, YES] = False,
) -> None:
    """Discard records: they stay out of silver even if later code or contracts would accept them."""

    selection = _record_filter(reason, column, status, since, until, offsets)
    if not approver(yes)(f"Discard these records of {dataset} until they are reinstated?"):
        raise typer.Exit(FAILED)
    count = discard(load_settings(), dataset, selection, _author(why))
    Console().print(f"{count:,} records discarded", highlight=False)


@app.command("reinstate")
def reinstate_rejected(
    dataset: Dataset,
    why: Annotated[str, typer.Option("--why", help="The reason; stored with the decision.")] = "validated again",
    reason: Reason = None,
    column: Column = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    threshold: Annotated[float, THRESHOLD] = 0.0,
    yes: Annotated[bool, YES] = False,
    json_: AsJson = False,
) -> None:
    """Validate records again, with their fixes and the published release; valid ones are added to silver.

    It is a plan like any other: built, compared, approved, applied. Discarded records are included only when
    --status discarded or --offsets names them.
    """

    selection = _record_filter(reason, column, status, since, until, offsets)
    parameters = validated(ReinstateParameters, records=selection, threshold=threshold)
    plan_and_run(lambda settings: plan_reinstate(settings, dataset, parameters, _author(why)), yes, json_)


def _record_filter(
    reason: str | None,
    column: str | None,
    status: str | None,
    since: datetime | None,
    until: datetime | None,
    offsets: dict[int, tuple[int, int]] | None,
) -> RejectedFilter:
    """Return the filter. Raises typer.BadParameter without a condition."""

    options = (reason, column, status, since, until, offsets)
    if all(each is None for each in options):
        raise typer.BadParameter("select records with --reason, --column, --status, --from, --to or --offsets")
    return RejectedFilter(reason, column, None, status, since, until, offsets)


def _author(why: str) -> Author:
    return Author(current_user(), datetime.now(UTC), why)


def _read(path: Path | None) -> bytes:
    assert path is not None
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
