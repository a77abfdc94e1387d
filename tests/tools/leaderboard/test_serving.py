"""`cepheid leaderboard --serve`: what a browser gets, and nobody else; what is built again."""

import shutil
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools import build_leaderboard
from cepheid.tools.leaderboard import serving
from cepheid.tools.leaderboard.serving import Handler, Live, watch
from tests.compliance.builder import SYSTEM, run_records, write_log, write_result

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def live(star_shape: Definition) -> Live:
    """A site of one result, with what the server knows of it."""
    write_result(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    made = Live(Path("site"))
    made.build = 1
    return made


@pytest.fixture
def server(live: Live) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, live)) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _ask(server: ThreadingHTTPServer, path: str, host: str = "") -> tuple[int, str, str, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    headers = answer.getheader("Content-Type", ""), answer.getheader("X-Content-Type-Options", "")
    return answer.status, *headers, answer.read()


def test_a_page_reloads_itself_and_the_site_on_disk_does_not(server: ThreadingHTTPServer) -> None:
    status, kind, nosniff, page = _ask(server, "/")
    assert (status, kind, nosniff) == (200, "text/html; charset=utf-8", "nosniff")
    assert page.count(b'<script src="/.live.js">') == 1
    assert b"connect-src 'self'" in page
    assert b".live" not in Path("site/index.html").read_bytes()
    assert _ask(server, "/.live")[3] == b"1"
    assert b"location.reload" in _ask(server, "/.live.js")[3]


def test_a_log_is_text(server: ThreadingHTTPServer) -> None:
    status, kind, nosniff, log = _ask(server, "/logs/acme/box/star_shape-mini-closed/result_0.txt")
    assert (status, kind, nosniff) == (200, "text/plain; charset=utf-8", "nosniff")
    assert log.startswith(b":::MLLOG")


@pytest.mark.parametrize(
    "path",
    [
        "/../out/systems/box.json", "/%2e%2e/out/systems/box.json", "//etc/passwd", "/nothing.html",
        "/results/../../out/systems/box.json", "/.git/config", "/link.txt", "/%00", "/results",
        "/files.txt/x",
    ],
)  # fmt: skip
def test_nothing_but_the_site_is_served(path: str, server: ThreadingHTTPServer) -> None:
    Path("site/link.txt").symlink_to(Path("out/systems/box.json").resolve())
    assert _ask(server, path)[0] == 404


def test_another_name_of_this_machine_is_refused(server: ThreadingHTTPServer) -> None:
    assert _ask(server, "/", host=f"evil.example:{server.server_port}")[0] == 403
    assert _ask(server, "/", host=f"localhost:{server.server_port}")[0] == 200
    assert _ask(server, "/", host="127.0.0.1")[0] == 200  # as browsers say it of port 80
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as browser:
        browser.sendall(b"GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 400 " in browser.recv(20)


def test_a_problem_that_comes_back_is_told_again(
    live: Live, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "POLL_SECONDS", 0.0)
    builds: list[int] = []

    def build() -> tuple[Entry, ...]:
        builds.append(len(builds))
        if len(builds) != 2:
            raise UserError("the same problem")
        return ()

    def is_over() -> bool:
        Path("out/results/box/star_shape-mini-closed/result_0.txt").touch()
        return len(builds) == 3

    watch(live, [Path("out")], build, is_over)
    assert capsys.readouterr().err.count("the same problem") == 2


def test_a_build_deletes_no_file_that_was_added_since_the_last(live: Live) -> None:
    arguments = build_leaderboard.COMMAND.make_parser().parse_args(["out", "--output", "site"])
    Path("site/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="notes"):
        build_leaderboard._build(arguments, Path("site"))
    assert Path("site/notes.txt").read_text() == "mine"


def test_only_this_machine_is_answered(star_shape: Definition, live: Live) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match="fix: choose another one"):
            build_leaderboard.main(["out", "--output", "site", "--serve", port])
    assert serving.HOST == "127.0.0.1"


def test_what_changes_is_built_again_and_told(
    star_shape: Definition, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs come in while the server runs: each step of the story happens before a poll."""
    monkeypatch.setattr(serving, "POLL_SECONDS", 0.0)
    write_result(Path("out"), star_shape, runs=2)
    live, parser = Live(Path("site")), build_leaderboard.COMMAND.make_parser()
    arguments = parser.parse_args(["out", "--output", "site", "--serve"])
    other = {**SYSTEM, "system": "other"}
    partial_log = Path("out/results/box/star_shape-mini-closed/result_2.txt.partial")
    builds = []

    def build() -> tuple[Entry, ...]:
        return build_leaderboard._build(arguments, Path("site"))

    def begin_run() -> None:
        write_log(partial_log, run_records(star_shape, 2)[:-4])

    def end_run() -> None:
        partial_log.unlink()
        write_result(Path("out"), star_shape, runs=3)
        write_result(Path("out"), star_shape, system=other)

    def lose_all() -> None:
        shutil.rmtree("out/results/other")

    story = iter([lambda: None, begin_run, lambda: None, end_run, lose_all])

    def is_over() -> bool:
        builds.append(live.build)
        step = next(story, None)
        if step is not None:
            step()
        return step is None

    watch(live, [Path("out")], build, is_over)
    assert builds == [0, 1, 1, 1, 2, 2]
    told, problems = capsys.readouterr()
    lines = [line.split("  ", 1)[1] for line in told.splitlines() if "  " in line]
    name = "acme/box/star_shape-mini-closed"
    assert lines[0] == f"{name}: 2/5 runs; provisional: 2 of 5 runs"
    assert lines[1] == "1 result: 1 provisional; 0 runs going on"
    assert lines[2].startswith(f"{name}: 2/5 runs; result_2 at 100 samples: rmse 0.")
    assert f"{name}: 3/5 runs; provisional: 3 of 5 runs" in lines[4:6]
    assert any(
        line.startswith(f"{name.replace('box', 'other')}: 5/5 runs; scored, ") for line in lines
    )
    assert lines[6] == "2 results: 1 scored, 1 provisional; 0 runs going on"
    assert problems.startswith("not built: site: 1 of the 2 results there would disappear")


def test_before_the_first_run_a_page_says_what_is_missing(star_shape: Definition) -> None:
    page = serving.make_waiting_page("out: <no> run has ended yet")
    assert b"out: &lt;no&gt; run has ended yet" in page
    assert b"/.live.js" in page
