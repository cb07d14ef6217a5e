"""Results of the benchmarks: spread, comparison, file, table, the command and its exit codes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import command
from benchmarks.machine import Machine
from benchmarks.page import as_page, as_plot
from benchmarks.plan import Mode, RunOptions, steps
from benchmarks.result import BenchResult, Measurement, ResultUnreadable, read_result, write_result
from benchmarks.spread import Spread, compared, differing_conditions, only_in_one, spreads
from benchmarks.table import as_text
from rich.console import Console
from typer.testing import CliRunner

from include.cli.main import app
from include.ground.settings import Settings, load_settings

AT = datetime(2026, 11, 21, tzinfo=UTC)


# --- results and their comparison --------------------------------------------------------------------------------

MACHINE = Machine(
    cores=2, memory_gib=23.5, system="Linux", java="17", python="3.11", packages={"polars": "1"}, load=0.1, settings={}
)


def measured(
    run: int, figures: dict[str, float], *problems: str, mode: str = "drain", system: str = "headrace"
) -> Measurement:
    return Measurement(
        run=run, system=system, dataset="flights", mode=mode, setting="x", figures=figures, problems=problems
    )


def result_of(*measurements: Measurement, machine: Machine = MACHINE) -> BenchResult:
    return BenchResult(command="again", at=AT, machine=machine, measurements=measurements)


def rendered(result: BenchResult, baseline: BenchResult | None = None) -> str:
    out = StringIO()
    Console(file=out, width=200).print(as_text(result, baseline))
    return out.getvalue()


def test_spread_is_of_valid_runs_only() -> None:
    runs = [measured(n, {"events/s": value}) for n, value in enumerate((3.0, 1.0, 2.0))]
    found = spreads([*runs, measured(3, {"events/s": 99.0}, "silver has 1 row too few")])
    assert list(found.values()) == [{"events/s": Spread(2.0, 1.0, 3.0, runs=3)}]


@pytest.mark.parametrize(
    ("figure", "new", "verdict"),
    [
        ("events/s", (120.0, 130.0), "better"),
        ("events/s", (70.0, 80.0), "worse"),
        ("events/s", (90.0, 120.0), "same"),
        ("p95, s", (120.0, 130.0), "worse"),
        ("CPU s/M, JVM", (70.0, 80.0), "better"),
        ("records", (200.0, 200.0), "other"),
    ],
)
def test_figures_differ_only_when_their_spreads_do_not_overlap(
    figure: str, new: tuple[float, ...], verdict: str
) -> None:
    before = result_of(*(measured(n, {figure: value}) for n, value in enumerate((90.0, 100.0, 110.0))))
    after = result_of(*(measured(n, {figure: value}) for n, value in enumerate(new)))
    (ratio,) = compared(after, before)
    assert ratio.ratio == pytest.approx(sum(new) / 200)
    assert (ratio.low, ratio.high) == pytest.approx((min(new) / 110, max(new) / 90))
    assert ratio.verdict == verdict


def test_one_run_decides_nothing() -> None:
    several = [measured(n, {"events/s": 100.0 + n}) for n in range(3)]
    once = measured(1, {"events/s": 900.0})
    assert [each.verdict for each in compared(result_of(once), result_of(*several))] == ["one run"]
    assert [each.verdict for each in compared(result_of(*several), result_of(once))] == ["one run"]


def test_what_only_one_result_has_is_named_and_not_compared() -> None:
    ours, theirs = result_of(measured(1, {"events/s": 1.0})), result_of(measured(1, {"seconds": 0.0}, mode="cold"))
    assert compared(ours, theirs) == []
    assert only_in_one(ours, theirs) == [
        "flights drain x headrace: only in this result",
        "flights cold x headrace: only in the baseline",
    ]


def test_other_conditions_are_named_but_not_another_load() -> None:
    other = MACHINE.model_copy(update={"load": 3.0, "packages": {"polars": "2"}})
    assert differing_conditions(result_of(machine=other), result_of()) == [
        "packages: {'polars': '1'} → {'polars': '2'}"
    ]


def test_result_is_read_as_it_was_written(settings: Settings) -> None:
    result = result_of(measured(1, {"events/s": 1.5}, "wrong"))
    path = write_result(settings, result)
    assert read_result(path) == result
    assert not result.is_valid


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}'])
def test_another_file_is_no_result(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "x.json").write_text(text)
    with pytest.raises(ResultUnreadable):
        read_result(path)
    (path := tmp_path / "future.json").write_text(result_of().model_copy(update={"format": 2}).model_dump_json())
    with pytest.raises(ResultUnreadable, match="format is 2"):
        read_result(path)


def test_table_shows_goals_ratios_and_invalid_runs() -> None:
    good = measured(1, {"events/s": 90_000.0, "CPU s/M, JVM": 30.0})
    text = rendered(result_of(good, measured(2, {"events/s": 1.0}, "gold is wrong")), result_of(good))
    assert "90,000" in text
    assert text.count("met") == 1
    assert text.count("missed") == 1
    assert "× 1.00 (1.00–1.00) one run" in text
    assert "INVALID run 2, flights drain (headrace): gold is wrong" in text


def test_table_shows_systems_side_by_side() -> None:
    text = rendered(
        result_of(measured(1, {"events/s": 300.0}), measured(1, {"events/s": 150.0}, system="hand-written"))
    )
    line = next(line for line in text.splitlines() if "hand-written" in line)
    assert "2.00" in line


def test_table_warns_of_a_busy_machine() -> None:
    busy = MACHINE.model_copy(update={"load": 3.2})
    assert "the machine is busy" in rendered(result_of(machine=busy))


def test_each_rate_is_a_step_and_modes_keep_their_order() -> None:
    options = RunOptions(
        modes=frozenset({Mode.latency, Mode.drain, Mode.growth, Mode.rebuild}),
        datasets=("flights",),
        runs=1,
        warm_up=1,
        events=1_000,
        rates=(2_000, 20_000),
        seconds=1,
        between=(1, 2),
        trial_seconds=1,
        batches=40,
        meanwhile=2_000,
        keep=False,
    )
    assert [(step.mode, step.setting) for step in steps(options)] == [
        (Mode.drain, "1,000 events"),
        (Mode.latency, "2,000 events/s"),
        (Mode.latency, "20,000 events/s"),
        (Mode.growth, "40 batches"),
        (Mode.rebuild, "stream at 2,000 events/s"),
    ]


# --- command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(command, "this_machine", lambda: MACHINE)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "mine"))
    load_settings.cache_clear()
    yield tmp_path / "mine"
    load_settings.cache_clear()


@pytest.mark.parametrize(("problems", "code"), [((), 0), (("gold is wrong",), 1)])
def test_bench_writes_its_result_and_fails_only_when_a_figure_is_invalid(
    monkeypatch: pytest.MonkeyPatch, machine: Path, problems: tuple[str, ...], code: int
) -> None:
    found = measured(1, {"events/s": 1.0}, *problems)
    monkeypatch.setattr(command, "measured_runs", lambda *_: iter([found]))
    result = CliRunner().invoke(app, ["bench", "run", "drain"])
    assert result.exit_code == code, result.output
    page, path = sorted((machine / "benchmarks").iterdir())
    assert read_result(path).measurements == (found,)
    assert "Headrace, measured on" in page.read_text()


def test_page_has_a_bar_for_each_system_a_dot_for_each_run_and_no_links() -> None:
    ours = [measured(n, {"events/s": 100.0 + n}) for n in range(3)]
    page = as_page(result_of(*ours, measured(1, {"events/s": 50.0}, system="PySpark <b>")))
    assert page.count("<rect") == 2
    assert page.count("<circle") == 4
    assert "PySpark &lt;b&gt;" in page
    assert "http" not in page


def test_bench_refuses_a_dataset_that_it_cannot_measure(machine: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "run", "--dataset", "weather"])
    assert result.exit_code == 2
    assert "flights, ad_events" in result.output


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    # A shell starts what runs in the background with Ctrl-C ignored, the tests too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number in numbers:
        signal.signal(number, before[number])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_exits_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, machine: Path, number: signal.Signals
) -> None:
    def interrupted(*_: object) -> Iterator[Measurement]:
        signal.raise_signal(number)
        raise AssertionError("still here")

    monkeypatch.setattr(command, "measured_runs", interrupted)
    result = CliRunner().invoke(app, ["bench", "run"])
    assert (result.exit_code, result.output) == (130, "stopped: nothing was measured\n")


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    found = measured(1, {"events/s": 1.0})

    def interrupted(*_: object) -> Iterator[Measurement]:
        yield found
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measured_runs", interrupted)
    result = CliRunner().invoke(app, ["bench", "run", "drain"])
    (path,) = (machine / "benchmarks").iterdir()
    assert result.exit_code == 130
    assert result.output.endswith(f"stopped: what was measured is in {path}\n")
    assert read_result(path).measurements == (found,)


def test_plot_of_a_result_is_an_image_with_a_bar_for_each_system() -> None:
    figures = {"events/s": 10.0, "CPU s/M, all": 4.0, "p95, s": 1.0}
    drawn = as_plot(result_of(measured(1, figures), measured(1, figures, system="peer <b>")))
    image = ElementTree.fromstring(drawn)
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(each.itertext()) for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [
        *("flights drain: events/s", "x, headrace", "10", "x, peer <b>", "10"),
        *("flights drain: CPU s/M, all", "x, headrace", "4", "x, peer <b>", "4"),
    ]
