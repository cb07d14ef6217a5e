"""A comparison as a self-contained page and as Markdown. Templates: include/ground."""

from __future__ import annotations

from include.change.comparison_view import comparison_view
from include.ground.render_template import render_html, render_markdown
from include.plans.comparison import Comparison


def comparison_page(title: str, comparison: Comparison) -> str:
    """Return a comparison as one HTML page."""
    return render_html("comparison.html.j2", title=title, view=comparison_view(comparison))


def comparison_markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown, with at most three samples of each kind of change."""
    return render_markdown("comparison.md.j2", view=comparison_view(comparison))
