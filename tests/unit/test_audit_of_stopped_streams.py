"""An audit of a stream that publishes nothing more says so: what is published may be balanced all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from include.audit.balance import DatasetAudit
from include.cli import audit_command
from include.settings import Settings
from include.state.driver_status import DriverStatus, status_file
from include.state.process_states import stream_name

AUDITED = DatasetAudit("sales", "r1", 3, ())


@pytest.mark.parametrize(("state", "code"), [("failed", 2), ("halted", 2), ("running", 0), ("stopped", 0)])
def test_stream_that_publishes_nothing_more_makes_the_audit_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: str, code: int
) -> None:
    settings = Settings(state=tmp_path)
    status_file(settings, stream_name("sales")).write(DriverStatus(state=state, reason="sales-0, offset 7"))
    monkeypatch.setattr(audit_command, "load_settings", lambda: settings)
    recorded: list[DatasetAudit] = []
    monkeypatch.setattr(audit_command, "requested_audits", lambda *_, **__: [AUDITED])
    monkeypatch.setattr(audit_command, "record_outcomes", lambda _, audits, __: recorded.extend(audits))
    if code:
        with pytest.raises(typer.Exit) as left:
            audit_command.audit()
        assert left.value.exit_code == code
    else:
        audit_command.audit()
    assert recorded == [AUDITED], "the tables are balanced: the next audit continues there"
    printed = capsys.readouterr().out
    assert (f"the stream is {state}" in printed, "sales-0, offset 7" in printed) == (code == 2, code == 2)
