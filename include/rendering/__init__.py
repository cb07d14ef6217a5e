"""Renders jinja2 templates as HTML and Markdown; every value is shown literally."""
