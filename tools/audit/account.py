"""The account of an audit: one table of what it proves and what not, and the same as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cepheid.rules.layout import lay_out, wrap
from cepheid.tools.audit.choice import Choice
from cepheid.tools.audit.comparison import Verdict
from cepheid.tools.audit.rerun import Origin, Rerun

CODE_PROVES = {
    "reference": "this checkout's own code was run: no submitted code takes part",
    "task": "the submitted code gives the curves below; it was not read: read it",
    "foreign": "the submitted program writes the log below; it could print a recorded one: read it",
}
PROVEN = {
    "newness": "the code wrote this log during the audit",
    "own durations": "it is not the old log with other times",
    "judged images": "the definition's weights made them, from the noise of the seed",
}
NOT_PROVEN = (
    "that the other runs of the result are as honest as this one; another audit draws another",
    "that the machine is the one described, and that nothing else ran on it",
    "energy: power logs are not measured again",
)


Row = tuple[str, str, str]
"""What was looked at, what was found, and what that proves."""


@dataclass(frozen=True)
class Account:
    """Everything that an audit found. ``rerun`` has no containment where no submitted code ran."""

    choice: Choice
    origin: Origin
    rerun: Rerun
    is_elsewhere: bool  # the repeated run was made by hand (--against)
    verdicts: Sequence[Verdict]

    @property
    def agrees(self) -> bool:
        """True where nothing differs, and at least one quality metric could be judged."""
        metrics = {target.metric for target in self.choice.definition.quality}
        judged = [verdict for verdict in self.verdicts if verdict.agrees is not None]
        return all(v.agrees for v in judged) and any(v.what in metrics for v in judged)

    def list_rows(self) -> list[Row]:
        """List what was looked at, from the log to the times."""
        choice = self.choice
        folder = choice.result.folder
        drawn = f"drawn from {len(choice.converged)} with --seed {choice.seed}"
        index = choice.logged.index
        rows: list[Row] = [
            ("log", "the checker finds no error", "its form, order, clocks and values fit"),
            (
                "run",
                f"{index}, {drawn if choice.seed is not None else 'named by the user'}",
                f"nobody knew before which of the {len(folder.runs)} runs it would be"
                if choice.seed is not None
                else "nothing: only a drawn run surprises its submitter",
            ),
            self._describe_code(),
            self._describe_data(),
        ]
        return rows + [
            (verdict.what, f"{verdict.word}: {verdict.found}", _say_what_proves(verdict))
            for verdict in self.verdicts
        ]

    def _describe_code(self) -> Row:
        if self.is_elsewhere:
            return ("code", f"run by hand: {self.rerun.log.path}", "as much as you trust that")
        proves = CODE_PROVES[self.origin.kind]
        if self.origin.kind == "reference" and not self.origin.is_same:
            proves += "; compare the versions"
        containment = self.rerun.containment
        ran = f"; contained by {containment.name}: {containment.what}" if containment else ""
        changed = "".join(f"; {each} in place of the log's" for each in self.rerun.overrides)
        return ("code", f"{self.origin.describe()}{ran}{changed}", proves)

    def _describe_data(self) -> Row:
        before, now = (log.text("data_digest") for log in (self.choice.logged, self.rerun.log))
        if before == now:
            return ("data", "the same digest", "both runs name the same data")
        return ("data", f"{before}, repeated {now}", "nothing: other data were named")

    def format(self) -> str:
        """Format the table, what it does not prove, and the verdict."""
        table = lay_out([("what", "found", "what that proves"), *self.list_rows()])
        lines = [*table, "", "not proven:", *(f"  - {what}" for what in NOT_PROVEN)]
        return wrap("\n".join([*lines, "", self.format_verdict()]))

    def format_verdict(self) -> str:
        """Format the verdict as one line."""
        if self.agrees:
            return "agrees"
        different = [f"{v.what}: {v.found}" for v in self.verdicts if v.agrees is False]
        return f"differs: {'; '.join(different) or 'no quality metric could be judged'}"

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain JSON."""
        containment = self.rerun.containment
        return {
            "log": str(self.choice.logged.path),
            "run": self.choice.logged.index,
            "seed": self.choice.seed,
            "code": self.origin.kind,
            "code_is_the_logs": self.origin.is_same,
            "overrides": list(self.rerun.overrides),
            "containment": containment.name if containment else None,
            "verdicts": [
                {"what": v.what, "agrees": v.agrees, "found": v.found} for v in self.verdicts
            ],
            "quality": [
                [{"samples": point.samples, **point.metrics} for point in log.quality_curve]
                for log in (self.choice.logged, self.rerun.log)
            ],
            "rows": list(map(list, self.list_rows())),
            "not_proven": list(NOT_PROVEN),
            "agrees": self.agrees,
        }


def _say_what_proves(verdict: Verdict) -> str:
    if verdict.agrees is None:
        return "nothing"
    if verdict.agrees is False:
        return "the log, or this repetition, is not what it should be"
    if verdict.what in PROVEN:
        return PROVEN[verdict.what]
    if verdict.what == "evaluations":
        return "the run needs as many samples"
    if "time" in verdict.what or "latency" in verdict.what or "images" in verdict.what:
        return "the log is not faster than this machine"
    return "model, data and measure of quality are those of the log; not which seed"
