"""The reference and the index of decisions are what the code says."""

from __future__ import annotations

import re

from reference_pages import DOCS, generated_pages, key_meanings


def test_generated_pages_are_current() -> None:
    old = [str(page) for page, text in generated_pages().items() if not page.is_file() or page.read_text() != text]
    assert old == [], "make reference writes them anew"


def test_each_key_has_a_meaning_and_each_meaning_a_key() -> None:
    page = generated_pages()[DOCS / "reference" / "yaml-keys.md"]
    tables = re.findall(r"^### ([A-Za-z ]+?)(?:, below [^\n]*)?$(.*?)(?=^##|\Z)", page, re.M | re.S)
    keys = {(title, key) for title, text in tables for key in re.findall(r"^\| `(\w+)` \|", text, re.M)}
    assert keys == {(title, key) for title, meanings in key_meanings().items() for key in meanings}
    assert len(keys) > 100
