"""The files behind a result, or its code: a page that lists the copies, and the copies."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cepheid.leaderboard.site.evidence import CopiedFolder
from cepheid.leaderboard.site.view import Site, render


@dataclass(frozen=True)
class Line:
    """A file in the list; ``digest`` is the SHA-256 of its content."""

    name: str
    link: str
    size: str
    digest: str


def make_files(site: Site) -> Iterator[tuple[str, bytes]]:
    """Yield each copy, then the page that lists the copies of its folder."""
    for folder in site.evidence.list_folders():
        digests = {}
        for file in folder.files:
            if not file.why_not:
                content = file.read()
                digests[file.name] = hashlib.sha256(content).hexdigest()
                yield file.copy, content
        yield folder.page, (_render_page(site, folder, digests)).encode("utf-8", "backslashreplace")


def _render_page(site: Site, folder: CopiedFolder, digests: dict[str, str]) -> str:
    lines = [
        Line(
            file.name,
            site.link(folder.page, file.path),
            f"{file.size_bytes:,}",
            digests.get(file.name) or f"not copied: {file.why_not}",
        )
        for file in folder.files
    ]
    return render(site, "files.html", folder.page, folder=folder, lines=lines)
