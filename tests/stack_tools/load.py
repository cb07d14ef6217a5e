"""Load on the compose stack: days of flights, sent by a container of their own.

Reads / Writes: the topic of the flights, and one manifest per load in the state folder, `load-<first>_<end>.jsonl`.
Guarantee: the loads of a stack follow each other without a gap, so that an oracle knows what was sent.
After a crash: `continued` finishes the load that was interrupted; nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from include.ground.errors import Terminal
from stack_tools.site import DATASET, CommandFailed, StackSite, await_that

FIRST, END = datetime(2013, 1, 1), datetime(2014, 1, 1)  # noqa: DTZ001  (days of the feed, which are UTC)
DAYS = 2
NAME = "headrace-load"
FINISHED = "which is finished"
SENT_WITHIN = 400.0


class FeedExhausted(Terminal):
    """The feed has too few days left for another run."""

    def __init__(self, until: datetime) -> None:
        super().__init__(
            f"this stack has the flights until {until:%F}, too few days of the year are left; nothing was done",
            "make stack-faults ARGS=--fresh   (removes its containers and volumes first)",
        )


@dataclass
class Load:
    """How far the feed was sent to a stack."""

    site: StackSite
    until: datetime

    @classmethod
    def continued(cls, site: StackSite, loads: int) -> Load:
        """Return the load after the last one, which is finished first. Raises FeedExhausted unless `loads` more fit."""
        listed = site.compose("exec", "-T", "runner", "find", "/state", "-maxdepth", "1", "-name", "load-*")
        spans = sorted(span_of(line) for line in listed.split())
        since, until = spans[-1] if spans else (FIRST, FIRST)
        if until + loads * timedelta(days=DAYS) > END:
            raise FeedExhausted(until)
        load = cls(site, until)
        if until > FIRST:
            load.finish(since)
        return load

    @contextmanager
    def days(self, rate: int) -> Iterator[None]:
        """Send the next days, `rate` events a second; at the end, wait until all of it is sent."""
        since, self.until = self.until, self.until + timedelta(days=DAYS)
        self._send(self._produce(since, rate), "--detach")
        yield
        with_container = ("docker", "ps", "--quiet", "--filter", f"name={NAME}")
        await_that(lambda: not self.site.run(*with_container).strip(), "the load is sent", SENT_WITHIN)
        self.finish(since)

    def finish(self, since: datetime) -> None:
        """Send what an interrupted sender did not deliver; the manifest of a finished one is refused."""
        try:
            self._send(self._produce(since))
        except CommandFailed as error:
            if FINISHED not in error.output:
                raise

    def _send(self, words: list[str], *options: str) -> None:
        # The sender of an interrupted run may still be there.
        with suppress(CommandFailed):
            self.site.run("docker", "rm", "--force", NAME)
        self.site.compose("run", "--rm", "--no-deps", "-T", "--name", NAME, *options, "runner", *words)

    def _produce(self, since: datetime, rate: int | None = None) -> list[str]:
        words = ["headrace", "produce", DATASET, "--from", f"{since:%F}", "--to", f"{self.until:%F}", "--quiet"]
        words += ["--manifest", f"/state/load-{since:%F}_{self.until:%F}.jsonl"]
        return [*words, "--rate", str(rate)] if rate else words


def span_of(manifest: str) -> tuple[datetime, datetime]:
    """Return the days of a manifest, or of its progress: `/state/load-2013-01-01_2013-01-03.jsonl`."""
    name = PurePosixPath(manifest).name.removeprefix("load-").partition(".")[0]
    since, _, until = name.partition("_")
    return datetime.strptime(since, "%Y-%m-%d"), datetime.strptime(until, "%Y-%m-%d")  # noqa: DTZ007  (as FIRST)
