"""Documents do not lie: links lead somewhere, and numbers come from the committed results."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Anchors as code hosts make them: lower case, punctuation dropped, spaces to hyphens."""
    headings = HEADING.findall(FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_between_documents_resolve(repository: Path, project_files: list[Path]):
    documents = [path for path in project_files if path.suffix == ".md"]
    assert repository / "README.md" in documents
    broken = {path: broken_links(path) for path in documents}
    assert not {path: links for path, links in broken.items() if links}


def test_the_guard_sees_a_broken_link(tmp_path: Path):
    document = tmp_path / "a.md"
    document.write_text("# One\n[good](#one) [far](https://host/x) [no](b.md) [anchor](#two)\n")
    assert broken_links(document) == ["b.md", "#two"]


def test_every_document_is_reachable_from_the_index(repository: Path):
    index = (repository / "docs" / "README.md").read_text()
    names = {path.name for path in (repository / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in names if f"({name}" not in index} == set()


def test_tables_equal_the_committed_results(repository: Path):
    done = subprocess.run(
        [sys.executable, repository / "benchmarks" / "report.py", "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
