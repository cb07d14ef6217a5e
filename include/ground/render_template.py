"""Renders a template of `include/ground/templates`; a value with markup is shown as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 200


def render_html(template: str, **values: object) -> str:
    """Return the page; values are escaped."""
    return _environment(markdown=False).get_template(template).render(values)


def render_markdown(template: str, **values: object) -> str:
    """Return the text; values are code spans, except those that the template declares `safe`."""
    return _environment(markdown=True).get_template(template).render(values)


def render_text(template: str, **values: object) -> str:
    """Return the text; values are as they are."""
    plain = _environment(markdown=False).overlay(autoescape=False, keep_trailing_newline=True)
    return plain.get_template(template).render(values)


def html_templates(filters: Mapping[str, Callable[[Any], str]]) -> Environment:
    """Return the templates of pages, with more filters."""
    found = _environment(markdown=False).overlay()
    found.filters = {**found.filters, **filters}
    return found


def code_span(value: object) -> str:
    """Return a value as Markdown that shows it literally, as one line of at most 200 characters.

    A backtick would end the code span and a pipe the table cell, so both are replaced.
    """
    if isinstance(value, Markup):
        return str(value)
    text = " ".join(str(value).replace("`", "'").replace("|", "¦").splitlines())
    return f"`{text[:LONGEST]}`" if text else ""


@cache
def _environment(*, markdown: bool) -> Environment:
    # Markdown is not HTML, so its values are made literal by `finalize` instead of autoescape.
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=not markdown,
        finalize=code_span if markdown else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
