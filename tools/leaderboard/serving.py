"""A site for an organiser at work: shown in a browser, built again when a file changes.

The server answers this machine alone. It adds a few lines to each page that reload it after a
build; the site on the disk has none of them.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from cepheid.compliance.finding import escape
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.errors import UserError
from cepheid.tools.leaderboard.watching import Report, Signature, take_signature

PORT = 8000
HOST = "127.0.0.1"
POLL_SECONDS = 1.0
LIVE = "/.live"  # no file of a site begins with a dot
SCRIPT = b"""
const ask = () => fetch("/.live").then((answer) => answer.text());
ask().then((first) => setInterval(() => ask().then((now) => {
  if (now !== first) location.reload();
}).catch(() => {}), 1000));
"""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".png": "image/png",
}
_POLICY = b"default-src 'none';"

Build = Callable[[], Sequence[Entry]]


class Live:
    """What the server shows: the folder of the site, and the number of the last build."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.build = 0
        self.problem = "the site is being built"

    def read(self, name: str) -> bytes | None:
        """Read a file of the site; None for any other path, and for what a link leads to."""
        parts = PurePosixPath(name).parts
        if not parts or any(part in ("..", "/") or part.startswith(".") for part in parts):
            return None
        path = self.folder.joinpath(*parts)
        for _ in range(3):  # a build replaces the folder, and for a moment there is none
            try:
                inside = path.resolve().is_relative_to(self.folder.resolve())
                return path.read_bytes() if inside else None
            except (FileNotFoundError, NotADirectoryError):
                time.sleep(0.05)
            except (OSError, ValueError):
                return None
        return None


class Handler(BaseHTTPRequestHandler):
    """Answers a browser on this machine."""

    server_version = "cepheid"
    sys_version = ""

    def __init__(self, live: Live, *args: object) -> None:
        self.live = live
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with a file of the site, or with the number of the last build."""
        host = (self.headers.get("Host") or "").partition(":")[0]
        if host not in (HOST, "localhost"):  # a page elsewhere may have given us its own name
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"not for this host\n")
            return
        try:
            path = unquote(urlsplit(self.path).path)
        except ValueError:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", b"not an address\n")
            return
        if path == LIVE:
            self._answer(HTTPStatus.OK, "text/plain", str(self.live.build).encode())
        elif path == f"{LIVE}.js":
            self._answer(HTTPStatus.OK, KINDS[".js"], SCRIPT)
        else:
            self._answer_file(path.lstrip("/") or "index.html")

    def _answer_file(self, name: str) -> None:
        content = self.live.read(name)
        kind = KINDS.get(PurePosixPath(name).suffix, "application/octet-stream")
        if content is None and self.live.build == 0:
            self._answer(HTTPStatus.OK, KINDS[".html"], make_waiting_page(self.live.problem))
        elif content is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"no such file of the site\n")
        else:
            is_page = kind == KINDS[".html"]
            self._answer(HTTPStatus.OK, kind, add_reload(content) if is_page else content)

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        with suppress(ConnectionError):  # a page that reloads does not wait for the rest
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows what happens to the results."""


def add_reload(page: bytes) -> bytes:
    """Add to a page what reloads it, and let it ask this server whether to."""
    page = page.replace(_POLICY, _POLICY + b" connect-src 'self';", 1)
    return page.replace(b"</body>", b'<script src="/.live.js"></script>\n</body>', 1)


def make_waiting_page(problem: str) -> bytes:
    """Make the page that is shown until there is a site."""
    import html

    text = html.escape(escape(problem))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>cepheid</title>'
        "</head>\n"
        f'<body><main><h1>No site yet</h1><p>{text}</p></main>\n<script src="/.live.js"></script>\n'
        "</body></html>\n"
    ).encode("utf-8", "backslashreplace")


def serve(port: int, paths: Sequence[Path], output: Path, build: Build) -> int:
    """Show the site until Ctrl-C, and build it again when a file below a path changes."""
    live = Live(output)
    try:
        server = ThreadingHTTPServer((HOST, port), partial(Handler, live))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--serve {port}: the port cannot be used ({error}); fix: choose another one"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://{HOST}:{server.server_port}/ shows {output}; Ctrl-C ends it", flush=True)
    try:
        watch(live, paths, build)
    except KeyboardInterrupt:
        print()
    finally:
        server.shutdown()
        server.server_close()
    return 0


def watch(
    live: Live, paths: Sequence[Path], build: Build, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Build whenever something has changed, until ``is_over``; say what has become of the results.

    A build that fails leaves the site as it was: an organiser may be in the middle of a change.
    """
    report, entries = Report(), tuple[Entry, ...]()
    seen: Signature | None = None
    while not is_over():
        began = time.monotonic()
        found = take_signature(paths, live.folder)
        took_seconds = time.monotonic() - began
        if seen is None or found.finished != seen.finished:
            try:
                entries = tuple(build())
                live.build += 1
                live.problem = ""
            except UserError as error:
                if str(error) != live.problem:
                    print(f"not built: {error}", file=sys.stderr, flush=True)
                live.problem = str(error)
        if found != seen:
            report.tell(entries)
        seen = found
        time.sleep(max(POLL_SECONDS, 10 * took_seconds))
