"""Errors as data: decision, code, facts, next command, and no secret in any address."""

import pickle

from include.ground.errors import Refused, Terminal, Transient


class NoTable(Terminal):
    """An error that somebody catches by its name."""


def test_an_error_carries_its_code_facts_and_remedy() -> None:
    error = Refused("port 8080 is in use", "headrace down", code="port-in-use", port=8080)
    assert (error.code, error.facts, error.remedy) == ("port-in-use", {"port": 8080}, "headrace down")
    assert str(error) == "port 8080 is in use\n  → headrace down"


def test_a_class_of_its_own_names_the_code() -> None:
    assert NoTable("none").code == "no-table"


def test_a_refusal_is_terminal_and_an_outage_is_not() -> None:
    assert isinstance(Refused("no"), Terminal)
    assert not isinstance(Transient("later"), Terminal)


def test_secrets_of_addresses_are_masked() -> None:
    assert "s3cret" not in str(Transient("postgresql://u:s3cret@host/db is down", "psql postgresql://u:s3cret@host/db"))


def test_an_error_of_another_process_keeps_its_data() -> None:
    error = pickle.loads(pickle.dumps(Refused("no", "ask later", code="closed", day=3)))
    assert (error.code, error.facts, error.remedy) == ("closed", {"day": 3}, "ask later")
