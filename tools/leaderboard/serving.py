"""A site for an organiser at work: shown in a browser, built again when a file changes.

The server answers this machine alone. It adds a few lines to each page that reload it after a
build; the site on the disk has none of them.
"""

import hashlib
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from cepheid.compliance.finding import escape
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import PARTIAL
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.errors import UserError

FILES_MAX = 200_000
DEPTH_MAX = 20
RUNNING_MAX = 16  # runs of one result at a time
RUNNING_BYTES_MAX = 2**24  # of a log that is still written; a longer one is not read for its state


@dataclass(frozen=True)
class Signature:
    """Digests of names, sizes and times of files: of logs that are still written, and the rest."""

    finished: str
    running: str


def take_signature(paths: Sequence[Path], output: Path) -> Signature:
    """Return the signature of all files below the paths, but for those of the site itself."""
    finished, running = hashlib.sha256(), hashlib.sha256()
    left_out = os.path.abspath(output)
    lines = (line for path in paths for line in _list(path, left_out))
    for name, facts in islice(lines, FILES_MAX):
        digest = running if name.endswith(PARTIAL) else finished
        digest.update(f"{name}\0{facts}\0".encode("utf-8", "surrogateescape"))
    return Signature(finished.hexdigest(), running.hexdigest())


def _list(folder: Path, left_out: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if os.path.abspath(entry.path) == left_out or entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth < DEPTH_MAX:
                yield from _list(Path(entry.path), left_out, depth + 1)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # renamed since the folder was listed
            continue
        yield entry.path, f"{status.st_size}\0{status.st_mtime_ns}"


@dataclass(frozen=True)
class State:
    """How far a result is, in words."""

    runs: str
    standing: str
    running: tuple[str, ...]

    def __str__(self) -> str:
        told = [f"{self.runs} runs", *self.running, self.standing]
        return "; ".join(told)


class Report:
    """Prints a line for each result whose state has changed, then one for all of them."""

    def __init__(self) -> None:
        self.before: dict[str, State] = {}

    def tell(self, entries: Sequence[Entry]) -> None:
        """Print what has changed since the last call."""
        now = {entry.id: describe_state(entry) for entry in entries}
        clock = time.strftime("%H:%M:%S")
        for name, state in now.items():
            if self.before.get(name) != state:
                print(f"{clock}  {name}: {state}")
        for name in self.before.keys() - now.keys():
            print(f"{clock}  {name}: gone")
        if now != self.before:
            print(f"{clock}  {_summarize(entries, now)}", flush=True)
        self.before = now


def _summarize(entries: Sequence[Entry], states: dict[str, State]) -> str:
    counts = Counter(entry.standing.verdict for entry in entries)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    running = sum(len(state.running) for state in states.values())
    results = f"{len(entries)} result{'' if len(entries) == 1 else 's'}"
    return f"{results}: {verdicts or 'none'}; {running} run{'' if running == 1 else 's'} going on"


def describe_state(entry: Entry) -> State:
    """Describe how far a result is: its runs, those that still go on, and its standing."""
    running = map(_describe_running, _list_running(entry.judged.folder.path))
    return State(str(entry.counts), _describe_standing(entry), tuple(running))


def _list_running(folder: Path) -> list[Path]:
    """List the logs of a result that are written now, which the last build may not have seen."""
    return sorted(islice(folder.glob(f"result_*{PARTIAL}"), RUNNING_MAX))


def _describe_standing(entry: Entry) -> str:
    score = entry.standing.score
    if score is None:
        return entry.standing.text or entry.standing.verdict
    unit = entry.kind.choose_unit(score.main.mean)
    what = f"{unit.format(score.main.mean)} {unit.name}"
    return f"{entry.standing.verdict}, {what}{'' if score.is_score else ' (time, no score)'}"


def _describe_running(path: Path) -> str:
    """Describe the run of a log that is still written, from its last evaluation."""
    name = escape(path.name.removesuffix(".partial").removesuffix(".txt"))
    try:
        if path.is_symlink() or path.stat().st_size > RUNNING_BYTES_MAX:
            return f"{name} is going on"
    except OSError:  # it has just ended
        return f"{name} has ended"
    log = runlog.read(path)
    if not log.quality_curve:
        return f"{name} has begun"
    last = log.quality_curve[-1]
    metrics = ", ".join(f"{escape(key)} {value:.4g}" for key, value in [*last.metrics.items()][:3])
    return f"{name} at {last.samples:,} samples: {metrics}"


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
    ".svg": "image/svg+xml",
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
        signature = take_signature(paths, live.folder)
        took_seconds = time.monotonic() - began
        if seen is None or signature.finished != seen.finished:
            try:
                entries = tuple(build())
                live.build += 1
                live.problem = ""
            except UserError as error:
                if str(error) != live.problem:
                    print(f"not built: {error}", file=sys.stderr, flush=True)
                live.problem = str(error)
        if signature != seen:
            report.tell(entries)
        seen = signature
        time.sleep(max(POLL_SECONDS, 10 * took_seconds))
