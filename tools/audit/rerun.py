"""Repeat a logged run: with the reference, or with the submitter's code if the user asks for it.

That code runs in a container.
"""

import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
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
from cepheid.rules.host import KERAS_BACKENDS, ROOT
from cepheid.rules.systems import NAME
from cepheid.tools.audit.choice import Choice
from cepheid.tools.audit.containment import (
    UNCONTAINED,
    Containment,
    View,
    contain,
    make_environment,
    run_to_an_end,
    sweep,
)
from cepheid.tools.audit.newness import Span, require_own_file
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE

FLAG = "--run-submitted-code"
SCRIPT = "run.sh"
TIMES_DEFAULT = 10.0  # the logged time, after which submitted code is ended
TEMPORARY = "tmp"  # within the output, for what is too large for memory
SECONDS_MIN = 120.0  # for its start on a machine that is busy
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
    """The repeated run, how its code was contained (None for our own), and when it ran.

    ``span`` is None where the run was repeated by hand.
    """

    log: RunLog
    containment: Containment | None = None
    overrides: tuple[str, ...] = ()
    span: Span | None = None


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
    how = logged.implementation
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
    Submitted code sees what is ``shared`` and ends after so many ``times`` the logged time.
    """

    data: Path
    output: Path
    overrides: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    shared: tuple[Path, ...] = ()
    times: float = TIMES_DEFAULT
    is_contained: bool = True

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
        extras.require_for_runs(choice.definition.extras, *_find_framework(logged))
    output.mkdir(parents=True, exist_ok=True)
    if any(output.iterdir()):
        raise UserError(f"--output {output}: not empty, so what is made could not be told apart")
    is_submitted = origin.kind != "reference"
    script = _find_script(origin) if origin.kind == "foreign" else []
    folder = _prepare(choice, data)
    containment = None
    if is_submitted:
        view = View((origin.code, folder), output, settings.shared)
        containment = contain(view) if settings.is_contained else UNCONTAINED
        print(f"the submitter's code, contained by {containment.name}: {containment.what}")
    if origin.kind == "foreign":
        command = [*script, str(folder), str(output.resolve())]
        _copy_other_logs(choice, output)
    else:
        command = [*settings.run, *list_arguments(logged, choice.definition)]
        command += [text for override in settings.overrides for text in ("--set", override)]
        command += ["--task", str(origin.code.resolve())] if origin.kind == "task" else []
        command += ["--data", str(data.resolve()), "--output", str(output.resolve())]
    print(f"repeating: {logged.path}", flush=True)
    before = set(_list_logs(choice, output))
    began = time.time()
    try:
        if containment:
            code = _run_submitted([*containment.prefix, *command], choice, settings)
        else:
            code = subprocess.run(command, check=False).returncode
        span = Span(began, time.time())
        made = [path for path in _list_logs(choice, output) if path not in before]
        for path in made:
            require_own_file(path, output)
    finally:
        if is_submitted:
            sweep(output)
            shutil.rmtree(output / TEMPORARY, ignore_errors=True)
    if code not in (EXIT_FINE, EXIT_FINDINGS) or not made:
        raise UserError(f"{logged.path}: the run could not be repeated, see above")
    same = [path for path in made if path.name == logged.path.name]
    return Rerun(runlog.read((same or made)[0]), containment, settings.overrides, span)


def _run_submitted(command: list[str], choice: Choice, settings: Settings) -> int:
    """Run submitted code until it ends, or for as many times the logged time as was allowed."""
    times = [event.time_ms / 1000 for event in choice.logged.events]
    most = max(SECONDS_MIN, settings.times * (max(times) - min(times)))
    temporary = settings.output / TEMPORARY
    temporary.mkdir()
    environment = make_environment(temporary, is_contained=settings.is_contained)
    return run_to_an_end(command, environment, most)


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
    framework, backend = _find_framework(logged)
    arguments += ["--framework", framework, *(["--backend", backend] if backend else [])]
    values = {name: logged.value(name) for name in chosen.hyperparameters if logged.first(name)}
    execution = _read_execution(logged.implementation.get("execution"))
    for key, value in {**values, **execution}.items():
        if isinstance(value, bool | int | float | str) and value not in ("auto", ""):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["--set", f"{key}={text}"]
    return arguments


def _find_framework(logged: RunLog) -> tuple[str, str]:
    """Return framework and backend of a log as `cepheid run` names them; "" for no backend."""
    framework = str(logged.implementation.get("framework", "torch"))
    if not framework.startswith("keras"):
        return "torch", ""
    backend = framework.partition(" on ")[2].partition(" ")[0]
    return "keras", backend if backend in KERAS_BACKENDS else ""


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
    from cepheid.reference.data import generators

    logged = choice.logged
    lines = [f"{logged.path}: written by the submitter's own code, which is run only if you ask"]
    lines.append(f"  1. read {origin.code}")
    if origin.kind == "task":
        lines.append(f"  2. add {FLAG}: `cepheid run --task` runs it, contained by bubblewrap")
        return "\n".join(lines)
    script = origin.code / SCRIPT
    name, scale = choice.definition.name, choice.definition.scale
    if script.is_file():
        lines.append(f"  2. install what {origin.code / 'README.md'} asks for")
        lines.append(f"  3. add {FLAG}: runs `{SCRIPT} DATA OUTPUT`, contained by bubblewrap")
        lines.append(f"     or by hand: cepheid data {name} --scale {scale} --data {data}")
        prepared = generators.folder(choice.definition.data, data)
        lines.append(f"                 {shlex.join([str(script), str(prepared), 'OUTPUT'])}")
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
