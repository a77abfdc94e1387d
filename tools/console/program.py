"""What all programs share: exit codes, sub-commands, files of a user, and how a program ends."""

import gc
import importlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cepheid.rules import extras
from cepheid.rules.errors import UserError, cannot_write, did_you_mean, explain_system_error
from cepheid.rules.host import ROOT, atomic_write, end_on_interruption
from cepheid.rules.layout import wrap
from cepheid.tools.console.arguments import make_study_parser

if TYPE_CHECKING:
    from cepheid.measure.engine.study import Study
    from cepheid.tools.console.terminal import Terminal

EXIT_FINE, EXIT_FINDINGS, EXIT_WRONG_USE = 0, 1, 2


def run_command(
    program: str, noun: str, commands: Mapping[str, tuple[str, str]], about: str,
    arguments: Sequence[str],
) -> int:  # fmt: skip
    """Run the command that the first argument names; only its module is imported.

    Without arguments, or where they ask for help, print ``about``.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(about)
        return EXIT_FINE if arguments else EXIT_WRONG_USE
    name, *rest = arguments
    if name not in commands:
        raise UserError(f'no {noun} "{name}"{did_you_mean(name, commands)} (all: {program} --help)')
    gc.disable()  # what modules make stays: nobody needs to look for garbage in it
    with end_on_interruption(EXIT_FINDINGS):
        module = importlib.import_module(commands[name][0])
    gc.freeze()
    gc.enable()
    if hasattr(module, "STUDY"):
        return _run_study(module.STUDY, f"{program} {name}".removeprefix("cepheid "), rest)
    code: int = module.main(rest)
    return code


COLOURS = {"error": 31, "fail": 31, "rejected": 31, "warning": 33, "note": 36, "pass": 32}
_SEVERITY = re.compile(
    r"(?m)(?:(?<=: )|(?<=:\n  )|(?<=\n    ))[A-Z]\d+\.\w+(?:\s+(?P<level>warning|note):)?"
    r"|^(?P<verdict>pass|fail)(?=: )|\b(?P<why>rejected)(?=:\s)"
)


def colour(text: str, output: Path | None = None) -> str:
    """Return a text with severities and verdicts in colour, if it goes to a terminal.

    The variable NO_COLOR keeps it plain (no-color.org).
    """
    if output or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text

    def paint(found: re.Match[str]) -> str:
        level = found[found.lastgroup] if found.lastgroup else "error"
        return f"\033[{COLOURS[level]}m{found[0]}\033[0m"

    return _SEVERITY.sub(paint, text)


def list_commands(commands: Mapping[str, tuple[str, str]]) -> str:
    """Return one line for each command: its name and what it does."""
    width = max(map(len, commands))
    return "\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in commands.items())


def _run_study(study: "Study", command: str, argv: Sequence[str]) -> int:
    """Run `cepheid COMMAND`, which is this study. Exit code 1 if something was not reached.

    One of several ranks ends its process here.
    """
    arguments = make_study_parser(study, command).parse_args(argv)
    arguments.command = shlex.join(("cepheid", *command.split(), *argv))

    from cepheid.measure.engine import study as engine
    from cepheid.reference.machine.placement import end_rank, find_placement

    place = find_placement()

    is_fine = engine.run_study(study, arguments, open_terminal)
    code = EXIT_FINE if is_fine else EXIT_FINDINGS
    if place.world_size > 1:
        end_rank(code)
    return code


def open_terminal(file: IO[str] | None) -> "Terminal":
    """Return the terminal of this process; only that of the first rank shows anything."""
    from cepheid.reference.machine.placement import find_placement
    from cepheid.tools.console.terminal import Terminal

    return Terminal(quiet=find_placement().rank > 0 and not file, file=file)


def run_tool(tool: Callable[[Sequence[str] | None], int]) -> None:
    """Run a tool's main and exit: one line for a mistake, a traceback for a bug, both exit 2."""
    _replace_closed_streams()
    # They interrupt as Ctrl-C does, so that nothing stays half done.
    _handle_signals(signal.SIG_DFL, signal.default_int_handler)
    os.register_at_fork(after_in_child=_let_signals_end)
    try:
        code = tool(None)
        sys.stdout.flush()
    except UserError as error:
        _complain(error)
        code = EXIT_WRONG_USE
    except KeyboardInterrupt:
        print("cepheid: interrupted", file=sys.stderr)
        code = EXIT_FINDINGS
    except BrokenPipeError:  # the reader of our output, for example `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_FINE
    except Exception as error:
        if getattr(error, "is_wrong_use", False):  # of the library second_order
            _complain(error)
        elif reason := explain_system_error(error):
            _complain(reason)
        elif (
            isinstance(error, ModuleNotFoundError)
            and (error.name or "").partition(".")[0] in extras.EXTRA_OF
        ):
            _complain(extras.explain_missing(str(error.name)))
        else:  # a bug of ours: a report needs the traceback
            sys.excepthook(*sys.exc_info())
        code = EXIT_WRONG_USE
    _let_signals_end()
    raise SystemExit(code)


def _complain(what: object) -> None:
    print(wrap(f"cepheid: {what}"), file=sys.stderr)


def _handle_signals(before: object, after: Callable[..., object] | signal.Handlers) -> None:
    """Handle SIGTERM and SIGHUP otherwise, unless they are ignored, as by `nohup`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is before:
            signal.signal(number, after)


def _let_signals_end() -> None:
    """Let SIGTERM and SIGHUP end a process again, for example a worker that this one forks."""
    _handle_signals(signal.default_int_handler, signal.SIG_DFL)


def _replace_closed_streams() -> None:
    """Let a stream that the shell closed (``>&-``) lead nowhere, before a file gets its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to a file that is not there yet.

    Raises UserError where it already exists, or cannot be written; then nothing is left behind.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: already exists; delete it or choose another name")
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` to a file that an earlier call of the same tool may have written.

    Raises UserError where it cannot be written; then the earlier file is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def make_new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` if the block succeeds, else is deleted.

    It is filled beside the parent of ``path``, so that no tool takes it for one of the folders
    there. Raises UserError where ``path`` already exists, or cannot be written.
    """
    import shutil  # here: few commands need it
    import tempfile

    if os.path.lexists(path):
        raise UserError(f"{path}: already exists; change it, or move it away")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parents[1], prefix=f".{path.name}-"))
        try:
            folder.chmod(0o755)
            yield folder
            folder.rename(path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error


def fill_templates(templates: Path, words: Mapping[str, str], folder: Path) -> None:
    """Write what the templates of a folder say into another one."""
    from string import Template  # here: few commands need it

    for template in sorted(templates.iterdir()):
        text = Template(template.read_text(encoding="utf-8")).substitute(words)
        (folder / template.name.removesuffix(".template")).write_text(text, encoding="utf-8")


def read_version() -> str:
    """Return the version of this program."""
    from configparser import ConfigParser  # here: most commands need none of it
    from importlib import metadata

    try:
        return metadata.version("cepheid")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        settings = ConfigParser()
        settings.read(ROOT / "setup.cfg", encoding="utf-8")
        return settings["metadata"]["version"]
