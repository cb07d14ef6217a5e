"""A hook of MkDocs: links from the pages to files elsewhere in the repository, and back.

READMEs and decision records stay next to their code. The site has them as pages below `repository/`; a link to any
other file is shown as its text, if the file exists. A link to a file that is missing is an error of MkDocs.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS, OTHERS = "docs/", "repository/"
LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def tracked(pattern: str = "*") -> list[str]:
    """Return the repository's files, tracked or new, that match."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's other Markdown files as pages."""
    for path in tracked("*.md"):
        if not path.startswith(DOCS):
            files.append(File.generated(config, OTHERS + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links across the border of docs/ at pages of the site, or leave their text."""
    return LINK.sub(_rewritten(page.file.src_uri), markdown)


def _rewritten(page: str) -> Callable[[re.Match[str]], str]:
    source = page.removeprefix(OTHERS) if page.startswith(OTHERS) else DOCS + page

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith(DOCS):
            on_site = path.removeprefix(DOCS)
        elif path.endswith(".md"):
            on_site = OTHERS + path
        else:
            return text if (ROOT / path).exists() else found[0]
        return f"[{text}]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"

    return link
