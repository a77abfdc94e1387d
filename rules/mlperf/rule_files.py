"""The rule files of a round of MLPerf, as an installed mlperf-logging or a checkout has them.

The files are read as text and never imported. What this module does not know in them is refused
with file and line: a rule is never left out.
"""

import ast
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from cepheid.rules import extras
from cepheid.rules.errors import UserError
from cepheid.rules.mlperf.expressions import (
    NotSupportedError,
    Statements,
    ask_each,
    compile_all,
    compile_expression,
    compile_filter,
    compile_statements,
    parse,
)
from cepheid.rules.mlperf.keys import ONCE, Check, KeyRules, RuleFile
from cepheid.rules.mlperf.tables import (
    read_benchmarks,
    read_description_rules,
    read_reference_runs,
    read_text,
)
from cepheid.rules.mlperf.words import Flags, find_flags

PACKAGE, DISTRIBUTION = "mlperf_logging", "mlperf-logging"
VARIABLE = "CEPHEID_MLPERF_RULES"  # names a checkout whose rules are read instead
DEPTH_MAX = 10  # of nodes in nodes; rules have four
FOLDER = re.compile(r"(training|hpc)_(\d+)\.(\d+)\.0")
IN_SECONDS = "training_0.6.0/"  # these rules take times in seconds, as their logs have them
FIRST_FILE = "common.yaml"  # of a round
AT_LEAST = re.compile(r"AT_LEAST\((\d{1,6})\)")
AT_LEAST_ONE_OR = re.compile(r"AT_LEAST_ONE_OR\((.*)\)")
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True)
class RuleSet:
    """The rules of one round: ``usage`` is training or hpc, ``version`` such as 5.1.

    ``judge`` says whose verdict it is: an installed package is no history of its rounds. ``runs``
    is there for a round without rules, which is not judged.
    """

    folder: Path
    usage: str
    version: str
    judge: str
    runs: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def root(self) -> str:
        """The folder with the rules of all rounds; a text is looked up sooner than a path."""
        return str(self.folder.parent)

    @cached_property
    def first_file(self) -> str:
        """The name of the file with which judging begins."""
        return f"{self.folder.name}/{FIRST_FILE}"

    def read(self, name: str) -> RuleFile | None:
        """Return a file of the rules by the name that rules call it; None where there is none.

        A round may ask for a file of another one. Raises UserError for a rule that is not
        supported.
        """
        return _find_file(self.root, name)

    def count_runs(self) -> Mapping[str, int]:
        """Return the number of runs of each benchmark of the round, in the order of their names."""
        if self.runs:
            return self.runs
        counts, allowed = read_benchmarks(self.folder.parent.parent / "benchmark_meta.py")
        names = allowed.get(self.usage, {}).get(self.version, ())
        return {name: counts[self.usage][name] for name in sorted(set(names))}

    def read_description_rules(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the fields of a system's description, and the values of its status."""
        folder = self.folder.parent.parent / "system_desc_checker"
        path = folder / "system_desc_checker.py"
        return read_description_rules(path) if path.is_file() else ((), ())

    def read_reference_runs(self, benchmark: str) -> Mapping[int, Sequence[float]]:
        """Return what the reference needed to its target in each run, by batch size.

        In epochs or samples, as logs of the benchmark count. Empty where there are none. Raises
        UserError for a table that is not as expected.
        """
        folder = self.folder.parent.parent / "rcp_checker" / self.folder.name
        path = folder / f"rcps_{benchmark}.json"
        return read_reference_runs(path) if path.is_file() else {}


def find_rule_sets() -> Mapping[str, RuleSet]:
    """Return all rule sets that are there, by the name of their round, such as mlperf-hpc-3.0.

    Empty where mlperf-logging is not installed. Raises UserError where ``VARIABLE`` names a folder
    without rules.
    """
    return _find_rule_sets(os.environ.get(VARIABLE, ""))


def use_checkout(folder: Path | None) -> None:
    """Read the rules of a checkout from now on, also in processes that are started later."""
    if folder:
        os.environ[VARIABLE] = str(folder)


@cache
def _find_rule_sets(checkout: str) -> Mapping[str, RuleSet]:
    package = _find_in_checkout(Path(checkout)) if checkout else _find_installed()
    if package is None:
        return {}
    folders = (package / "compliance_checker").glob("*_*")
    found = [match for folder in folders if (match := FOLDER.fullmatch(folder.name))]
    judge = f"mlcommons' rules in {checkout}" if checkout else _name_installed(package)
    return {
        f"mlperf-{each[1]}-{each[2]}.{each[3]}": RuleSet(
            package / "compliance_checker" / each[0], each[1], f"{each[2]}.{each[3]}", judge
        )
        for each in sorted(found, key=lambda each: (each[1], int(each[2]), int(each[3])))
    }


def _find_installed() -> Path | None:
    found = find_spec(PACKAGE)  # which does not import it
    places = found.submodule_search_locations if found else None
    return Path(next(iter(places))) if places else None


def _name_installed(package: Path) -> str:
    """Return name and version; the folder beside the package tells it without a slow import."""
    for folder in package.parent.glob(f"{PACKAGE}-*.dist-info"):
        return f"{DISTRIBUTION} {folder.stem.partition('-')[2]}"
    from importlib import metadata  # of an editable installation

    return f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}"


def _find_in_checkout(folder: Path) -> Path:
    for package in (folder, folder / PACKAGE, folder.parent):
        if (package / "compliance_checker").is_dir():
            return package
    raise UserError(
        f"--rules {folder}: there are no rules of MLPerf; expected a checkout of "
        "github.com/mlcommons/logging, with the folder mlperf_logging/compliance_checker"
    )


def make_empty_set(name: str, runs: Mapping[str, int]) -> RuleSet:
    """Return the set of a round that mlcommons has no rules for."""
    _, usage, version = name.split("-")
    return RuleSet(Path(name), usage, version, "nobody, since mlcommons has no rules for it", runs)


def require_rule_set(name: str) -> RuleSet:
    """Return the rule set of a round. Raises UserError where it is not there."""
    found = find_rule_sets()
    if not found:
        raise UserError(f"{name}: {extras.explain_missing(PACKAGE, among=['mlperf'])}")
    return found[name]


# From the tree of a YAML file to rules; a node knows its line ---------------------------------


@lru_cache(maxsize=256)  # names come from logs
def _find_file(root: str, name: str) -> RuleFile | None:
    folder, _, file = name.partition("/")
    known = FOLDER.fullmatch(folder) and re.fullmatch(r"[A-Za-z0-9_.-]+\.yaml", file)
    path = Path(root) / folder / file
    return _read_file(path, name) if known and path.is_file() else None


def _read_file(path: Path, name: str) -> RuleFile:
    text = read_text(path)
    try:
        _refuse_depth(path, text)
        root = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line = f":{place.line + 1}" if place else ""
        raise UserError(f"{path}{line}: this is no YAML: {error}") from None
    if root is None and path.name == FIRST_FILE:
        raise UserError(f"{path}: no rules in it, so that every log would pass; is it whole?")
    reader = _Reader(path, name.startswith(IN_SECONDS))
    return reader.read(name, root) if root is not None else RuleFile(name)


def _refuse_depth(path: Path, text: str) -> None:
    """Raise UserError for nodes in nodes beyond any rule's: libyaml would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise UserError(f"{path}: more than {DEPTH_MAX} nodes in each other: no rule file")


class _Reader:
    """Reads the nodes of one file; refuses what it does not know with file and line."""

    def __init__(self, path: Path, in_seconds: bool) -> None:
        self.path, self.in_seconds = path, in_seconds
        self.flags: Flags = {}

    def refuse(self, node: Any, what: str) -> UserError:
        """Return the error that names the line of a node."""
        return UserError(
            f"{self.path}:{node.start_mark.line + 1}: not supported: {what}; nothing is judged by "
            "rules of which one is not understood"
        )

    def read(self, name: str, root: Any) -> RuleFile:
        """Return the rules of the file."""
        entries = [self.pair(each) for each in self.list_of(root)]
        bodies = [(kind, dict(self.pairs(body)), body) for kind, body in entries]
        self.flags = find_flags(*(self.find_keys(bodies, value) for value in (True, False)))
        keys, begin, joins, before_end, end = {}, None, "", None, tuple[Check, ...]()
        for kind, facts, body in bodies:
            match kind:
                case "KEY":
                    rules = self.read_key(facts, body)
                    keys[rules.name] = rules
                case "BEGIN":
                    self.expect(facts, body, {"CODE"})
                    joins = _find_join(self.text(facts["CODE"]))
                    begin = None if joins else self.statements(facts["CODE"])
                case "END":
                    self.expect(facts, body, {"PRE", "CHECK"})
                    before_end = self.statements(facts["PRE"]) if "PRE" in facts else None
                    end = self.checks(facts.get("CHECK"))
                    if any(re.search(r"\b(v|ll)\b", check.text) for check in end):
                        raise self.refuse(facts["CHECK"], "a record, of which END knows none")
                case _:
                    raise self.refuse(body, f"an entry {kind}")
        return RuleFile(name, begin, joins, keys, before_end, end)

    def read_key(self, facts: Mapping[str, Any], body: Any) -> KeyRules:
        """Return the rules of a key."""
        self.expect(
            facts, body,
            {"NAME", "REQ", "PRE", "CHECK", "POST", "FIRST_CHECK", "ATLEAST_ONE_CHECK"},
        )  # fmt: skip
        if "NAME" not in facts:
            raise self.refuse(body, "a key without NAME")
        count, or_else = self.read_count(facts.get("REQ"))
        some = self.checks(facts.get("ATLEAST_ONE_CHECK"))
        if len(some) > 1:
            raise self.refuse(facts["ATLEAST_ONE_CHECK"], "more than one ATLEAST_ONE_CHECK")
        checks = self.checks(facts.get("CHECK"))
        texts = [check.text for check in checks]
        is_plain = facts.keys() <= {"NAME", "REQ", "CHECK"} and ONCE not in self.text(facts["NAME"])
        find_broken = compile_filter(texts, self.in_seconds) if is_plain else None
        return KeyRules(
            self.text(facts["NAME"]),
            count,
            or_else,
            self.statements(facts["PRE"]) if facts.get("PRE") else None,
            checks,
            self.statements(facts["POST"]) if facts.get("POST") else None,
            self.checks(facts.get("FIRST_CHECK")),
            some[0] if some else None,
            ask_each if find_broken else compile_all(texts, self.in_seconds),
            find_broken,
        )

    def read_count(self, node: Any) -> tuple[str | int, tuple[str, ...]]:
        """Return how many records there are to be, and the keys that will do instead."""
        text = self.text(node) if node is not None else "OPTIONAL"
        if simple := {"OPTIONAL": "any", "EXACTLY_ONE": "once", "AT_LEAST_ONE": 1}.get(text):
            return simple, ()  # type: ignore[return-value]
        if least := AT_LEAST.fullmatch(text):
            return int(least[1]), ()
        if either := AT_LEAST_ONE_OR.fullmatch(text):
            return 1, tuple(name.strip() for name in either[1].split(","))
        raise self.refuse(node, f"the count {text}")

    def find_keys(self, bodies: Sequence[tuple[str, Any, Any]], value: bool) -> dict[str, str]:
        """Return the keys whose records set flags of ``s`` to a value, by flag."""
        found = {}
        for _, facts, _ in bodies:
            if "NAME" in facts and "POST" in facts:
                for flag in re.findall(rf"s\['(\w+)'\]\s*=\s*{value}", self.text(facts["POST"])):
                    found[flag] = self.text(facts["NAME"])
        return found

    def checks(self, node: Any) -> tuple[Check, ...]:
        """Return the conditions of a node: none, one, or a list."""
        is_list = isinstance(node, yaml.SequenceNode)
        nodes = self.list_of(node) if is_list else [] if node is None else [node]
        return tuple(map(self.check, nodes))

    def check(self, node: Any) -> Check:
        """Return a condition."""
        text = self.text(node).strip()
        try:
            return Check(text, compile_expression(text, self.in_seconds), self.flags)
        except NotSupportedError as problem:
            raise self.refuse(node, str(problem)) from None

    def statements(self, node: Any) -> Statements:
        """Return the function of a node with statements."""
        try:
            return compile_statements(self.text(node).strip(), self.in_seconds)
        except NotSupportedError as problem:
            raise self.refuse(node, str(problem)) from None

    def text(self, node: Any) -> str:
        """Return the text of a node."""
        if not isinstance(node, yaml.ScalarNode):
            raise self.refuse(node, "something else than a text")
        return str(node.value)

    def list_of(self, node: Any) -> Sequence[Any]:
        """Return the nodes of a list."""
        if not isinstance(node, yaml.SequenceNode):
            raise self.refuse(node, "something else than a list")
        return list(node.value)

    def pairs(self, node: Any) -> Iterator[tuple[str, Any]]:
        """Yield keys and nodes of a mapping."""
        if not isinstance(node, yaml.MappingNode):
            raise self.refuse(node, "something else than a mapping")
        for key, value in node.value:
            yield self.text(key), value

    def pair(self, node: Any) -> tuple[str, Any]:
        """Return the only key and node of a mapping."""
        pairs = list(self.pairs(node))
        if len(pairs) != 1:
            raise self.refuse(node, "an entry that is not one of BEGIN, KEY and END")
        return pairs[0]

    def expect(self, facts: Mapping[str, Any], node: Any, known: set[str]) -> None:
        """Raise UserError for a field that is not known."""
        if unknown := facts.keys() - known:
            raise self.refuse(node, f"the field {min(unknown)}")


# Metrics that a script logs apart, such as FID and CLIP, are joined to one record each. The code
# that does so is no expression; it is known by a digest, whatever its comments are.
_JOIN = "01ae64573d22c6e749d8f0886df8e3e6c9ac65c3f3cbbee9987d1b0d12b9767e"
_JOINED_BY = ("samples_count", "step_num")
JOINED, METRIC = "aggregated_eval_accuracy", "metric"


def _find_join(code: str) -> str:
    """Return the field by which code joins metrics; empty for any other code."""
    field = next((each for each in _JOINED_BY if each in code), "")
    if not field or JOINED not in code:
        return ""
    try:
        text = ast.unparse(parse(code.replace(field, "field"), "exec"))
    except (NotSupportedError, RecursionError):
        return ""
    return field if hashlib.sha256(text.encode()).hexdigest() == _JOIN else ""
