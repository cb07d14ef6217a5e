"""Load plans: history from files, as a release that has the records of the files besides those of the published one.

The owner commits the files' records to bronze, where no release has them; the release that has is built as a shadow,
compared, published and rolled back like any other (spark_jobs/layers/adr-0020).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from functools import partial
from itertools import count
from typing import Any

from include.change.jobs import request_owner
from include.change.kind import PlanKind, Request, cost_of, predict, refuse_unknown_dataset
from include.change.plan_parameters import LoadParameters
from include.change.release import TopicRelease, expired_until
from include.declare.contract_types import COLUMN_TYPES
from include.declare.dataset import Dataset, ReleaseStart, released_dataset, snapshot_with_files
from include.declare.file_sets import FileSet, RecordFile, repeated_files
from include.declare.release_diff import TableChange
from include.ground.errors import Refused
from include.ground.paths import warehouse
from include.ground.processes import Waiting
from include.ground.record_coordinates import FIRST_FILE_SET, is_file_set
from include.ground.settings import Settings
from include.plans.journal import next_plan_id
from include.plans.plan import LOAD, Plan, Prediction
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import batch_offsets, first_unexpired_batch
from include.read.record_files import FORMS, estimated_rows, form_of
from include.read.record_stores import FoundFile, checksum, find_files
from include.state.owner_requests import OwnerRequest, RequestKind
from include.state.process_states import stream_name
from include.state.run_files import process_signs


class LoadRefused(Refused):
    """Files cannot be loaded; `files` are those that are the reason."""

    def __init__(self, dataset: str, why: str, remedy: str, files: Sequence[str] = ()) -> None:
        super().__init__(f"{dataset}: {why}; nothing was planned", remedy)
        self.dataset, self.files = dataset, files


class LoadPlan(TopicRelease[LoadParameters]):
    """Loads files: bronze gets their records, and a release that has them is built as a shadow of production."""

    name = LOAD
    parameters = LoadParameters

    def over_sources(self) -> PlanKind[LoadParameters]:
        raise Refused(
            "a derived dataset has no records of its own, so no files can be loaded; nothing was planned",
            "headrace lineage   (shows the datasets that it is computed from)",
            code="load-refused",
        )

    def draft(self, request: Request[LoadParameters]) -> Plan:
        """Plan to load files. Reads each once, for its checksum. Raises LoadRefused, Transient, PlanConflict."""
        settings, dataset, parameters = request.settings, request.dataset, request.parameters
        refuse_unknown_dataset(settings, dataset)
        publication = read_publication(settings, dataset)
        base = released_dataset(settings, dataset, publication.release)
        start = _start(settings, base, publication)
        request.refuse_conflict()
        form, found = _found(settings, base, parameters)
        files = _new_files(base, _with_checksums(settings, found), parameters)
        added = _file_set(request, base, form, files)
        predicted = _predicted(settings, publication, base, start, added)
        request.refuse_small_disk(predicted, warehouse(settings))
        fresh = base if parameters.dry_run else snapshot_with_files(settings, base, start, added)
        size, number = sum(file.size for file in files), f"{len(files):,} file{'s' if len(files) > 1 else ''}"
        requested = f"{number}, {size / 1e6:,.1f} MB: {', '.join(parameters.files)}"
        others = "inherited" if start else "validated again"
        why = f"also has the records of these files, as partition {added.partition}; the others are {others}"
        changes = [TableChange(f"silver.{dataset}", "changed", why)]
        return request.plan(LOAD, base.release, fresh.release, predicted, changes=changes, requested=requested)

    def explain_build(self, plan: Plan) -> str:
        return f"load the files into bronze, and build release {plan.release} with them in tables of its own"

    def prepare(self, settings: Settings, plan: Plan, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Have the owner load the files, request by request, and publish the batches. Raises `request-refused`."""
        done: Mapping[str, Any] = {"is_done": False}
        while not done["is_done"]:
            request = OwnerRequest(plan.id, RequestKind.LOAD, plan.release, again=f"headrace plan apply {plan.id}")
            done = request_owner(settings, plan.dataset, request).done
            report({"at": "files", "done": done["done"], "of": done["of"]})
        # The shadow is built up to what is published.
        signs = partial(process_signs, settings, stream_name(plan.dataset))
        Waiting(f"plan {plan.id}: the loaded batches", signs).holds(
            lambda: read_publication(settings, plan.dataset).batch >= int(done["batch"])
        )


def _found(settings: Settings, base: Dataset, parameters: LoadParameters) -> tuple[str, list[FoundFile]]:
    """Return the files that the patterns name, each once, and their format."""
    found = list(dict.fromkeys(file for pattern in parameters.files for file in find_files(settings, pattern)))
    if not found:
        why = f"no file is named by {', '.join(parameters.files)}"
        raise LoadRefused(base.name, why, "--files 'FOLDER/*.jsonl.gz' in quotation marks, or s3://BUCKET/…")
    forms = {form_of(file.address) for file in found} if parameters.form == "auto" else {parameters.form}
    if forms - FORMS.keys() or len(forms) > 1:
        first = found[0].address
        unknown = [file.address for file in found if form_of(file.address) not in FORMS]
        unlike = unknown or [file.address for file in found if form_of(file.address) != form_of(first)]
        why = f"the names of the files end differently, or tell no format ({unlike[0]})"
        raise LoadRefused(base.name, why, f"--format {'|'.join(FORMS)}, or one format a plan", unlike)
    return _accepted_form(base, forms.pop()), found


def _accepted_form(base: Dataset, form: str) -> str:
    """Return how payloads are read: a dataset of lines gets the lines of its files. Raises LoadRefused."""
    payload = base.contract.payload.name
    if payload in LINE_PAYLOADS and form in ("jsonl", "csv"):
        return "jsonl"
    if payload not in JSON_PAYLOADS:
        why = f"its records are {payload}, which is not made of files of {form}"
        raise LoadRefused(base.name, why, f"send them to the topic   (headrace produce, or a producer of {payload})")
    return form


LINE_PAYLOADS, JSON_PAYLOADS = ("text", "csv"), ("json",)


def _with_checksums(settings: Settings, found: Sequence[FoundFile]) -> list[RecordFile]:
    """Read the files, several at a time: the digest is computed outside of Python."""
    with ThreadPoolExecutor(os.cpu_count() or 1, "checksum") as pool:
        digests = pool.map(lambda file: checksum(settings, file.address), found)
        return [RecordFile(f.address, f.size, f.modified_ns, digest) for f, digest in zip(found, digests, strict=True)]


def _new_files(base: Dataset, files: Sequence[RecordFile], parameters: LoadParameters) -> list[RecordFile]:
    """Return the files that are to be loaded. Raises LoadRefused for one whose bytes come twice."""
    repeated = dict(repeated_files(files, base.file_sets))
    if parameters.skip_loaded:
        files, repeated = [file for file in files if file.address not in repeated], {}
        if not files:
            remedy = f"headrace audit --dataset {base.name}   (lists them)"
            raise LoadRefused(base.name, "all of these files are loaded already", remedy)
    if repeated:
        address, where = next(iter(repeated.items()))
        more = f", and {len(repeated) - 1} more like it" if len(repeated) > 1 else ""
        why = f"{address} has the bytes of {where}{more}: each record would come twice"
        raise LoadRefused(base.name, why, "the same command with --skip-loaded leaves them out", list(repeated))
    return list(files)


def _predicted(
    settings: Settings, publication: Publication, base: Dataset, start: ReleaseStart | None, added: FileSet
) -> Prediction:
    """Return the cost: the published release's records, not all of bronze, are read again; the files' are estimated."""
    own, tables, name = predict(settings, publication), tables_of(settings, publication), publication.dataset
    first = first_unexpired_batch(tables[f"{'silver' if start else 'bronze'}.{name}"])
    sets = {each.partition for each in base.file_sets}
    batches = (each for each in batch_offsets(tables[f"bronze.{name}"].path, publication.batch) if each.batch >= first)
    read = sum(each.rows for each in batches if not is_file_set(each.partition) or each.partition in sets)
    found, share = [FoundFile(*astuple(file)[:3]) for file in added.files], read / max(own.records, 1)
    rows = read + estimated_rows(settings, found, added.form)
    size, count = round(own.bytes * share) + sum(file.size for file in found), round(own.files * share) + len(found)
    return cost_of(settings, name, rows, size, count, own.gold_rows)


def _file_set(request: Request[LoadParameters], base: Dataset, form: str, files: Sequence[RecordFile]) -> FileSet:
    plan = next_plan_id(request.settings, LOAD, base.name)
    # A state folder that was restored has sets of plans that it does not know.
    taken = {each.partition for each in base.file_sets}
    partition = next(n for n in count(FIRST_FILE_SET + int(plan.rpartition("-")[2])) if n not in taken)
    literals = tuple(_literals(base))
    # As exact as times of Kafka.
    time = request.now.replace(microsecond=request.now.microsecond // 1000 * 1000)
    return FileSet(plan, partition, form, literals, time, tuple(files))


def _literals(base: Dataset) -> Iterator[str]:
    """Yield the members of a record that JSON writes without quotation marks."""
    for column in base.contract.columns:
        if COLUMN_TYPES[column.type].logical in LITERALS and len(column.path) == 1:
            yield column.path[0]


LITERALS = ("integer", "number", "boolean")


def _start(settings: Settings, base: Dataset, publication: Publication) -> ReleaseStart | None:
    """Return from which batch on the release validates records: all, unless those of before cannot be any more."""
    bronze, silver = expired_until(settings, publication)
    if base.release_start is None and not (bronze or silver):
        return None
    versions = (publication.tables[f"{layer}.{publication.dataset}"].version for layer in ("silver", "rejected"))
    return ReleaseStart(base.release, publication.batch + 1, *versions)
