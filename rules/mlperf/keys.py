"""What one file of rules asks of a log: conditions, and how often records of a key may appear."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cepheid.rules.mlperf.expressions import Expression, Filter, Statements
from cepheid.rules.mlperf.words import Flags, list_read, say


@dataclass(frozen=True)
class Check:
    """A condition: its text in the file, its function, and what flags mean in the file."""

    text: str
    holds: Expression
    flags: Flags

    @cached_property
    def words(self) -> str:
        """What the condition asks for, in words."""
        return say(self.text, self.flags)

    @cached_property
    def reads(self) -> tuple[tuple[str, str], ...]:
        """What the condition reads of a record and of the state."""
        return list_read(self.text)


ONCE = "submission_"  # of such keys, mlcommons judges the first record alone

Steps = tuple[
    bool, Statements | None, Expression | None, Statements | None, tuple[Check, ...], Check | None
]


@dataclass(frozen=True)
class KeyRules:
    """What is asked of the records of one key.

    ``count`` is "once", "any" or the least number of records; records of one of ``or_else`` will do
    in their place. ``before`` and ``after`` are statements around the ``checks`` of each record,
    and ``all_hold`` says of a record whether it satisfies all of them. ``first`` is checked of the
    first record, and ``some`` holds for at least one. Where there is nothing but checks, and none
    depends on other records, ``find_broken`` lists the records that do not satisfy all of them.
    """

    name: str
    count: str | int = "any"
    or_else: tuple[str, ...] = ()
    before: Statements | None = None
    checks: tuple[Check, ...] = ()
    after: Statements | None = None
    first: tuple[Check, ...] = ()
    some: Check | None = None
    all_hold: Expression | None = None
    find_broken: Filter | None = None

    @property
    def acts(self) -> bool:
        """Whether records of the key are judged or change the state, not only counted."""
        return bool(self.before or self.checks or self.after or self.first or self.some)

    @cached_property
    def least(self) -> int:
        """The least number of records."""
        return self.count if isinstance(self.count, int) else int(self.count == "once")

    @property
    def steps(self) -> Steps:
        """What is done with each record of the key."""
        is_judged_once = ONCE in self.name
        return is_judged_once, self.before, self.all_hold, self.after, self.first, self.some


@dataclass(frozen=True)
class RuleFile:
    """One file of rules. ``joins`` is the field by which it joins metrics logged apart."""

    name: str
    begin: Statements | None = None
    joins: str = ""
    keys: Mapping[str, KeyRules] = field(default_factory=dict)
    before_end: Statements | None = None
    end: tuple[Check, ...] = ()

    @cached_property
    def counted(self) -> Sequence[tuple[str, KeyRules]]:
        """The rules of the keys of which there may be too few records, or too many."""
        return [(key, each) for key, each in self.keys.items() if each.or_else or each.least]

    @cached_property
    def once(self) -> frozenset[str]:
        """The keys of which there is to be one record."""
        return frozenset(key for key, each in self.counted if each.count == "once")

    @cached_property
    def counted_otherwise(self) -> Sequence[tuple[str, KeyRules]]:
        """The rules of the other keys of which there may be too few records."""
        return [(key, each) for key, each in self.counted if each.count != "once"]

    @cached_property
    def acting(self) -> Mapping[str, Steps]:
        """What is done with records of the keys that must be looked at one by one."""
        return {key: rules.steps for key, rules in self.keys.items() if rules.acts}

    @cached_property
    def filters(self) -> Mapping[str, Filter]:
        """What finds the broken records of the keys of which each record is judged by itself."""
        return {key: each.find_broken for key, each in self.keys.items() if each.find_broken}

    @cached_property
    def some(self) -> Sequence[tuple[str, Check]]:
        """The conditions that at least one record of a key must satisfy."""
        return [(key, rules.some) for key, rules in self.keys.items() if rules.some]
