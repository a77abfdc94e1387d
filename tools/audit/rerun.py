"""Repeat a logged run: with the reference, or with the submitter's code if the user asks for it.

That code runs in a process without network, where the system offers one.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.reference.run.config import parse_override
from cepheid.reference.session.code_digest import digest_code, digest_own_code
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.events import CHOICES
from cepheid.rules.host import ROOT
from cepheid.rules.systems import NAME
from cepheid.tools.audit.choice import Choice
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE

SHARED_LOOPBACK = 'ip link set lo up 2>/dev/null; exec "$@"'


@dataclass(frozen=True)
class Isolation:
    """How a command is kept from the network; ``prefix`` stands before the command."""

    name: str
    what: str
    prefix: tuple[str, ...] = ()


def find_isolation(writable: Path) -> Isolation:
    """Return the strictest isolation that works here; ``writable`` is the only folder it may fill.

    Each is tried with a command that does nothing, because many systems have the programs but
    forbid their use.
    """
    folder = str(writable.resolve())
    bubblewrap = ("bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc",
                  "--bind", folder, folder, "--unshare-net", "--die-with-parent")  # fmt: skip
    unshare = ("unshare", "-rn", "sh", "-c", SHARED_LOOPBACK, "sh")
    candidates = (
        Isolation("bwrap", "no network; could write only to its output folder", bubblewrap),
        Isolation("unshare -rn", "no network; could write wherever you can", unshare),
    )
    for candidate in candidates:
        if shutil.which(candidate.prefix[0]) and _works(candidate.prefix):
            return candidate
    return Isolation("none", "neither bwrap nor unshare works here: it had network and your files")


def _works(prefix: Sequence[str]) -> bool:
    try:
        done = subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


FLAG = "--run-submitted-code"
SCRIPT = "run.sh"
DIVISIONS = CHOICES["submission_division"]


@dataclass(frozen=True)
class Origin:
    """The code that wrote a log: the reference's, a submitter's task, or a program of their own.

    ``code`` is the submitter's folder. ``is_same`` is False where it is the reference in another
    version than this checkout's.
    """

    kind: Literal["reference", "task", "foreign"]
    code: Path
    is_same: bool = True

    def describe(self) -> str:
        """Describe the code in a few words."""
        if self.kind == "reference":
            return "the reference" if self.is_same else "the reference, in another version"
        return f"{self.code}, with the digest in the log" if self.is_same else str(self.code)


@dataclass(frozen=True)
class Rerun:
    """The repeated run, and how its code was kept from doing harm (None for our own)."""

    log: RunLog
    isolation: Isolation | None = None
    overrides: tuple[str, ...] = ()


def find_origin(logged: RunLog, chosen: Definition, root: Path) -> Origin:
    """Find out which code wrote a log.

    Raises UserError where the log names its submitter's code, and that does not lie beside it.
    """
    code = root / "benchmarks" / chosen.name
    digest = logged.text("task_digest")
    if digest is not None:
        if not code.is_dir() or digest_own_code(code) != digest:
            raise UserError(f"{code}: not the code that wrote {logged.path} (rule S4)")
        return Origin("task" if (code / "task.py").is_file() else "foreign", code)
    how = logged.value("implementation")
    how = how if isinstance(how, dict) else {}
    framework = str(how.get("framework", ""))
    is_same = logged.text("code_digest") == digest_code(ROOT, chosen.name)
    has_our_settings = isinstance(how.get("execution"), dict)
    if is_same or (has_our_settings and framework.startswith(("torch", "keras"))):
        return Origin("reference", code, is_same)
    return Origin("foreign", code, is_same=False)


@dataclass(frozen=True)
class Settings:
    """Where data and the repeated run lie, and settings that replace those of the log.

    ``run`` is the command of `cepheid run`, with which a log of the reference is repeated.
    """

    data: Path
    output: Path
    overrides: tuple[str, ...] = ()
    run: tuple[str, ...] = ()

    def check(self, chosen: Definition, origin: Origin) -> None:
        """Raise UserError for a setting that would make it another run."""
        for override in self.overrides:
            key, _ = parse_override(override)
            if origin.kind == "foreign":
                raise UserError(
                    f"--set {override}: a program of the submitter's own wrote this log, and takes "
                    "no settings; leave --set out"
                )
            if key in chosen.hyperparameters:
                raise UserError(
                    f"--set {override}: only how the arithmetic is done may differ from the log: "
                    "precision, compile, threads"
                )


def repeat(choice: Choice, origin: Origin, settings: Settings, *, is_allowed: bool) -> Rerun:
    """Repeat the run. ``is_allowed`` says whether submitted code may run.

    Raises UserError where it may not, with what to read and what to do, and where the run fails.
    """
    logged, data, output = choice.logged, settings.data, settings.output
    settings.check(choice.definition, origin)
    if origin.kind != "reference" and not is_allowed:
        raise UserError(_explain_refusal(choice, origin, data))
    if origin.kind == "foreign":
        extras.require_for_data(choice.definition.extras)
    else:
        extras.require_for_runs(choice.definition.extras, _find_framework(logged))
    output.mkdir(parents=True, exist_ok=True)
    isolation = find_isolation(output) if origin.kind != "reference" else None
    if isolation:
        print(f"the submitter's code runs isolated by {isolation.name}: {isolation.what}")
    if origin.kind == "foreign":
        command = [*_find_script(origin), str(_prepare(choice, data)), str(output.resolve())]
        _copy_other_logs(choice, output)
    else:
        _prepare(choice, data)
        command = [*settings.run, *list_arguments(logged, choice.definition)]
        command += [text for override in settings.overrides for text in ("--set", override)]
        command += ["--task", str(origin.code)] if origin.kind == "task" else []
        command += ["--data", str(data), "--output", str(output)]
    print(f"repeating: {logged.path}", flush=True)
    before = set(_list_logs(choice, output))
    prefix = isolation.prefix if isolation else ()
    with tempfile.TemporaryDirectory(dir=output, prefix="tmp-") as temporary:
        environment = _make_environment(Path(temporary))
        code = subprocess.run([*prefix, *command], check=False, env=environment).returncode
    made = [path for path in _list_logs(choice, output) if path not in before]
    if code not in (EXIT_FINE, EXIT_FINDINGS) or not made:
        raise UserError(f"{logged.path}: the run could not be repeated, see above")
    same = [path for path in made if path.name == logged.path.name]
    return Rerun(runlog.read((same or made)[0]), isolation, settings.overrides)


def list_arguments(logged: RunLog, chosen: Definition) -> list[str]:
    """Return the arguments of `cepheid run` that repeat a logged run.

    Raises UserError where the log does not contain them.
    """
    seed, division = logged.value("seed"), logged.text("submission_division")
    if not isinstance(seed, int) or division is None:
        raise UserError(
            f"{logged.path}: no seed or division; `cepheid check` explains what is wrong"
        )
    arguments = [chosen.name, "--scale", chosen.scale, "--division", division, "--seed", str(seed)]
    arguments += ["--runs", "1"]
    how = logged.value("implementation")
    arguments += ["--framework", _find_framework(logged)]
    values = {name: logged.value(name) for name in chosen.hyperparameters if logged.first(name)}
    execution = how.get("execution") if isinstance(how, dict) else None
    for key, value in {**values, **_read_execution(execution)}.items():
        if isinstance(value, bool | int | float | str) and value not in ("auto", ""):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["--set", f"{key}={text}"]
    return arguments


def _find_framework(logged: RunLog) -> str:
    """Return the framework of a log as `cepheid run --framework` names it."""
    how = logged.value("implementation")
    framework = str(how.get("framework", "torch")) if isinstance(how, dict) else "torch"
    return "keras" if framework.startswith("keras") else "torch"


def _read_execution(execution: object) -> Mapping[str, object]:
    """Return the settings of the arithmetic in a log, those of the benchmark among them."""
    if not isinstance(execution, dict):
        return {}
    own = execution.get("own")
    settings = {key: execution.get(key) for key in ("precision", "compile", "threads")}
    if str(execution.get("micro_batch")).isdecimal():  # else the share was taken as a whole
        settings["micro_batch"] = execution["micro_batch"]
    return {**settings, **(own if isinstance(own, dict) else {})}


def _explain_refusal(choice: Choice, origin: Origin, data: Path) -> str:
    """Explain that the submitter's code is not run unasked, and how to repeat the run."""
    logged = choice.logged
    lines = [f"{logged.path}: written by the submitter's own code, which is run only if you ask"]
    lines.append(f"  1. read {origin.code}")
    if origin.kind == "task":
        lines.append(f"  2. add {FLAG}: `cepheid run --task` runs it, without network if possible")
        return "\n".join(lines)
    script = origin.code / SCRIPT
    name, scale = choice.definition.name, choice.definition.scale
    if script.is_file():
        lines.append(f"  2. install what {origin.code / 'README.md'} asks for")
        lines.append(f"  3. add {FLAG}: runs `{SCRIPT} DATA OUTPUT`, without network if possible")
        lines.append(f"     or by hand: cepheid data {name} --scale {scale} --data {data}")
        by_hand = shlex.join([str(script), str(_find_data(choice, data)), "OUTPUT"])
        lines.append(f"                 {by_hand}")
    else:
        lines.append(f"  2. repeat the run as {origin.code / 'README.md'} says (no {SCRIPT} there)")
    again = f"OUTPUT/results/{'/'.join(logged.path.resolve().parts[-3:])}"
    lines.append(f"                 cepheid audit {logged.path} --against {again}")
    return "\n".join(lines)


def _find_script(origin: Origin) -> list[str]:
    script = origin.code / SCRIPT
    if not script.is_file():
        raise UserError(
            f"{script}: missing, so nothing says how to start this code; repeat the run as its "
            "README says, then give its log with --against"
        )
    return ["bash", str(script.resolve())]


def _find_data(choice: Choice, data_root: Path) -> Path:
    from cepheid.reference.data import generators

    return generators.folder(choice.definition.data, data_root)


def _prepare(choice: Choice, data_root: Path) -> Path:
    """Prepare the data here: the repeated run may not be able to write them. Return the folder."""
    from cepheid.reference.session.observer import prepare_data
    from cepheid.tools.console.terminal import Terminal

    return prepare_data(choice.definition, data_root, Terminal(quiet=False)).resolve()


def _copy_other_logs(choice: Choice, output: Path) -> None:
    """Copy the other logs of the result, so that a script that resumes makes only this run."""
    folder = _result_folder(choice, output)
    folder.mkdir(parents=True, exist_ok=True)
    for path in choice.result.folder.runs:
        if path.name != choice.logged.path.name and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)


def _result_folder(choice: Choice, output: Path) -> Path:
    """Return where the logs go. Raises UserError for names that could lead out of the output."""
    chosen, logged = choice.definition, choice.logged
    system, division = logged.text("submission_platform"), logged.text("submission_division")
    if not NAME.fullmatch(system or "") or division not in DIVISIONS:
        raise UserError(f"{logged.path}: no valid system or division (rule T14)")
    return output / "results" / str(system) / f"{chosen.name}-{chosen.scale}-{division}"


def _list_logs(choice: Choice, output: Path) -> Iterator[Path]:
    """Yield the run logs of this benchmark in the output, of whatever system."""
    name = _result_folder(choice, output).name
    yield from sorted(output.glob(f"results/*/{name}/result_*.txt"))


def _make_environment(temporary: Path) -> Mapping[str, str]:
    """Return the environment of the repeated run: this Python, temporary files in the output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "TMPDIR": str(temporary.resolve())}
