"""`headrace produce`: send real events to Kafka, on request with injected faults; or a file's records."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from include.cli.main import FAILED, INTERRUPTED
from include.cli.terminal import output_file, sample_file, share, utc_time
from include.declare.dataset import declared_dataset
from include.declare.payload_format import Encode
from include.ground.errors import Refused
from include.ground.kafka import ensure_topic
from include.ground.settings import load_settings
from include.producers.faults import Shares
from include.producers.feed import Feed
from include.producers.flights import FLIGHTS
from include.producers.sending import AT_ONCE, DeliveryFailed, Pace, Produced, Run, SendProgress, Sent, send
from include.producers.sending import produce as produce_rows
from include.producers.weather import WEATHER
from include.state.run_files import bootstrap_servers

CHUNK_LINES = 20_000
FEEDS: dict[str, Feed] = {feed.name: feed for feed in (FLIGHTS, WEATHER)}
"""The feeds of real events by name; a clone has those of the workloads too (`tests/workloads`)."""


def known_feeds() -> dict[str, Feed]:
    """Return all feeds; an installation without the workloads has the real ones only."""
    try:
        generated: dict[str, Feed] = import_module("workloads.feeds").GENERATED
    except ModuleNotFoundError:
        generated = {}
    return FEEDS | generated


def find_feed(name: str) -> Feed:
    """Return the feed. Raises Refused."""
    feeds = known_feeds()
    if name not in feeds:
        what = f"unknown feed {name!r} (known: {', '.join(feeds)}); nothing was sent"
        raise Refused(what, f"headrace produce {next(iter(feeds))}", code="unknown-feed", known=tuple(feeds))
    return feeds[name]


def send_file(
    path: Path,
    bootstrap: str,
    topic: str,
    *,
    key: str | None = None,
    encoded: Encode | None = None,
    pace: Pace = AT_ONCE,
) -> Sent:
    """Send each line that is not empty as a record to a topic, which must exist, in order of the file.

    `key` is the field of the JSON object whose value becomes the Kafka key, so that equal keys stay in order; a line
    without it, or without `key`, has none. `encoded` makes a record of a line and its number, before the first is sent,
    and again when it is sent. Raises DeliveryFailed, and what `encoded` raises.
    """
    total, done = sum(1 for _ in _records(path, encoded)), Produced(0, 0, 0.0, 0.0, {})
    for chunk in _chunks(path, key, encoded):

        def shift(at: SendProgress, before: Produced = done) -> None:
            pace.on_progress(SendProgress(0, before.sent + at.sent, total, before.seconds + at.seconds, at.behind))

        part = produce_rows(bootstrap, topic, chunk, replace(pace, on_progress=shift))
        sent, seconds = done.sent + part.sent, done.seconds + part.seconds
        done = Produced(sent, sent, seconds, max(done.behind, part.behind), {})
        if part.next_row < chunk.height:
            break
    return Sent(done, total, done.sent == total)


def _records(path: Path, encoded: Encode | None) -> Iterator[tuple[bytes, bytes]]:
    with path.open("rb") as file:
        for number, read in enumerate(file, 1):
            if read.strip():
                line = read.rstrip(b"\r\n")
                yield line, line if encoded is None else encoded(number, line)


def _chunks(path: Path, key: str | None, encoded: Encode | None) -> Iterator[pl.DataFrame]:
    """Yield the file's records as the producer takes them: columns `key`, `value` and `fault`."""
    records = _records(path, encoded)
    while chunk := list(islice(records, CHUNK_LINES)):
        keys = [None if key is None else record_key(line, key) for line, _ in chunk]
        values = [value for _, value in chunk]
        schema = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}
        yield pl.DataFrame({"key": keys, "value": values, "fault": [None] * len(values)}, schema)


def record_key(record: bytes, field: str) -> bytes | None:
    """Return the value of a record's field as a Kafka key: a text as it is, anything else as JSON; None without it."""
    try:
        value: Any = json.loads(record)
    except (ValueError, RecursionError):
        return None
    found = value.get(field) if isinstance(value, dict) else None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found, separators=(",", ":")).encode()


Share = Annotated[float, typer.Option(parser=share, metavar="SHARE", help="Share of such faults: 0.005 or 0.5%.")]


def produce(
    feed: Annotated[
        str | None,
        typer.Argument(help="The feed: flights, weather, ad_events, searches, posts, auction, orders, lineitem."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(parser=sample_file, metavar="FILE", help="Instead of a feed: your own records, one per line."),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic for the records of --file.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead of --topic: the dataset whose topic and format the records get.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(parser=sample_file, metavar="FILE", help="With --dataset: their schema, else the contract's."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The field of a record of --file whose value becomes the Kafka key.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option("--from", parser=utc_time, metavar="TIME", help="First event time, UTC.")
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option("--to", parser=utc_time, metavar="TIME", help="End of the event times, exclusive."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Events per second; as fast as possible if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed injects the same faults.")] = 1,
    duplicates: Share = 0.0,
    late: Share = 0.0,
    reorder: Share = 0.0,
    corrupt: Share = 0.0,
    manifest: Annotated[
        Path | None,
        typer.Option(
            parser=output_file,
            metavar="FILE",
            help="Record every fault here (JSON lines); an interrupted run can continue.",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of years in a row, each 371 days after the last.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, max=1024, help="Partitions of the topic, if it is created.")] = 2,
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Broker; headrace's own if not given.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Send a feed's events to its topic, optionally with duplicate, late, reordered, corrupt records; or a file's.

    Ctrl-C stops after pending records are delivered (exit 130); with --manifest the same command continues there.
    """
    shares = Shares(duplicates, late, reorder, corrupt)
    send_to: Callable[..., Sent]
    if file is not None:
        _refuse_feed_options(feed, since or until or manifest or repeat > 1 or shares != Shares())
        name, (target, encoded) = file.name, _target(topic, dataset, schema)
        send_to = partial(send_file, file, topic=target, key=key, encoded=encoded)
    elif feed is None or topic or dataset or schema or key:
        raise typer.BadParameter("name a feed, or --file FILE with --topic TOPIC or --dataset D", param_hint="FEED")
    else:
        run = Run(find_feed(feed), since, until, repeat, shares, seed)
        name, target = run.feed.name, run.feed.topic
        send_to = partial(send, run, now=datetime.now(UTC), manifest=manifest)
    address, console = bootstrap or bootstrap_servers(load_settings()), Console(stderr=True, soft_wrap=True)
    with _stop_on_interrupt() as stop, _progress(console, name, quiet) as on_progress:
        try:
            ensure_topic(address, target, partitions)
            sent = send_to(address, pace=Pace(rate, None, on_progress, stop))
        except DeliveryFailed as error:
            console.print(f"[bold red]headrace:[/] {error}", highlight=False)
            raise typer.Exit(FAILED) from error
    again = "" if file else " (with a --manifest it continues)"
    _print_result(sent, target, manifest, "continues there" if manifest else f"starts over{again}")


def _refuse_feed_options(feed: str | None, given: object) -> None:
    if feed is not None:
        raise typer.BadParameter(f"give a feed or --file, not both (feed: {feed!r})", param_hint="--file")
    if given:
        raise typer.BadParameter(
            "--from, --to, --repeat, --manifest and faults are for feeds; a file is sent as it is", param_hint="--file"
        )


def _target(topic: str | None, dataset: str | None, schema: Path | None) -> tuple[str, Encode | None]:
    """Return the topic of a file's records, and how they are written there; a schema is registered."""
    if (topic is None) == (dataset is None):
        raise typer.BadParameter(
            "--file needs the topic that its records go to, or their dataset", param_hint="--topic"
        )
    if dataset is not None:
        settings = load_settings()
        found = declared_dataset(settings, dataset)
        return found.pipeline.topic, found.contract.payload.encoding(settings, found, schema)
    if schema is not None:
        raise typer.BadParameter("is for --dataset; the records of --topic are sent as they are", param_hint="--schema")
    return str(topic), None


def _print_result(sent: Sent, topic: str, manifest: Path | None, again: str) -> None:
    done = sent.produced
    rate = done.sent / done.seconds if done.seconds else 0.0
    resumed = f", from record {sent.resumed_at:,} on" if sent.resumed_at else ""
    Console(soft_wrap=True).print(
        f"{done.sent:,} records to topic {topic} in {done.seconds:.1f} s ({rate:,.0f}/s){resumed}; "
        f"{done.next_row:,} of {sent.total:,} are in it"
    )
    if done.behind >= 1:
        Console(soft_wrap=True).print(f"at most {done.behind:.1f} s behind the requested rate")
    if manifest:
        Console(soft_wrap=True).print(f"faults and their offsets: {manifest}")
    if not sent.finished:
        Console(stderr=True, soft_wrap=True).print(f"stopped; the same command {again}")
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; a second Ctrl-C ends the program at once."""
    stopping = threading.Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stopping.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(console: Console, name: str, quiet: bool) -> Iterator[Callable[[SendProgress], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, disable=quiet) as bar:
        task = bar.add_task(f"{name}: deriving", total=None, rate="")

        def show(at: SendProgress) -> None:
            behind = f", {at.behind:.1f} s behind" if at.behind >= 1 else ""
            rate = f"{at.rate:,.0f} events/s{behind}"
            bar.update(task, description=name, completed=at.sent, total=at.total, rate=rate)

        yield show
