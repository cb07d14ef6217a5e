"""The reference and the index of decisions are what the code says."""

from __future__ import annotations

from reference_pages import generated_pages


def test_generated_pages_are_current() -> None:
    old = [str(page) for page, text in generated_pages().items() if not page.is_file() or page.read_text() != text]
    assert old == [], "make reference writes them anew"
