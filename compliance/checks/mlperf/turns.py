"""M7: the course of a v0.6 log."""

from collections.abc import Iterator, Mapping
from typing import Any

from cepheid.compliance.checks.mlperf.conditions import format_count, format_metadata
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.events import is_number


@rule("M7", Needs.RECORDS)
def check_turns(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that epochs, evaluations and blocks take turns and are numbered in order (M7)."""
    course = _Course()
    wrong: dict[str, list[Event]] = {}
    for event in run.events:
        step = getattr(course, event.key, None) if event.key in _Course.KEYS else None
        if step is not None and not step(event.metadata):
            wrong.setdefault(event.key, []).append(event)
    for key, events in wrong.items():
        yield breach(
            run,
            events[0],
            "M7.out_of_turn",
            key=key,
            times=format_count(events),
            turn=_Course.KEYS[key],
            metadata=format_metadata(events[0]),
        )


class _Course:
    """The state of a v0.6 run; each method takes a record and returns whether it is in turn."""

    KEYS: Mapping[str, str] = {
        "run_start": "one run_start",
        "run_stop": "run_stop while no evaluation is open",
        "epoch_start": "the epoch after the last one, none open, between run_start and run_stop",
        "epoch_stop": "the epoch that is open",
        "eval_start": "a later epoch than the last evaluated one, already begun, no evaluation "
        "open or without a result, between run_start and run_stop",
        "eval_stop": "the evaluation that is open",
        "eval_accuracy": "the epoch of the last eval_start",
        "block_start": "the next epoch, or within one the last evaluated, no block open, "
        "between run_start and run_stop",
        "block_stop": "the block that is open, after the result of its evaluation",
    }

    def __init__(self) -> None:
        self.running = self.stopped = False
        self.in_epoch = self.in_eval = self.in_block = False
        self.has_accuracy = True
        self.epoch: Any = 0
        self.evaluated: Any = 0
        self.block: Any = None

    def run_start(self, metadata: Mapping[str, Any]) -> bool:
        self.running = True
        return True

    def run_stop(self, metadata: Mapping[str, Any]) -> bool:
        self.stopped = True
        return not self.in_eval

    def epoch_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("epoch_num")
        in_turn = self._goes_on and not self.in_epoch and _is_next(number, self.epoch)
        self.in_epoch, self.epoch = True, number
        return in_turn

    def epoch_stop(self, metadata: Mapping[str, Any]) -> bool:
        in_turn = self.in_epoch and metadata.get("epoch_num") == self.epoch
        self.in_epoch = False
        return in_turn

    def eval_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("epoch_num")
        in_turn = self._goes_on and not self.in_eval and self.has_accuracy
        in_turn = in_turn and _is_less(self.evaluated, number) and not _is_less(self.epoch, number)
        self.in_eval, self.has_accuracy, self.evaluated = True, False, number
        return in_turn

    def eval_stop(self, metadata: Mapping[str, Any]) -> bool:
        in_turn = self.in_eval and metadata.get("epoch_num") == self.evaluated
        self.in_eval = False
        return in_turn

    def eval_accuracy(self, metadata: Mapping[str, Any]) -> bool:
        self.has_accuracy = True
        return bool(metadata.get("epoch_num") == self.evaluated)

    def block_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("first_epoch_num")
        begins = number == self.evaluated if self.in_epoch else _is_next(number, self.epoch)
        in_turn = self._goes_on and not self.in_block and begins
        self.in_block, self.has_accuracy, self.block = True, True, number
        return in_turn

    def block_stop(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("first_epoch_num")
        in_turn = self.in_block and self.has_accuracy and number == self.block
        self.in_block = False
        return in_turn

    @property
    def _goes_on(self) -> bool:
        return self.running and not self.stopped


def _is_next(number: object, before: object) -> bool:
    return is_number(number) and is_number(before) and number == before + 1


def _is_less(first: object, second: object) -> bool:
    return is_number(first) and is_number(second) and first < second
