"""What states one quantity and must agree: ``FACTS`` (T14, S2, S14).

A key begins with its source, then come the names that lead to the value; ``*`` is any name. Names
of a log lead into the value of an event, or into its metadata.

A relation gets what the first key says, and what the others say, None where one says nothing. It
returns what was expected, or None if they agree.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cepheid.compliance.finding import encode_canonically, format_value
from cepheid.rules.events import is_blank, is_integer, is_number
from cepheid.rules.systems import PRECISIONS, find_device, name_precision

THREADS_PER_CORE_MAX = 16
RANKS_PER_CORE_MAX = 4
THREADS_OF_RANKS_MAX = 4  # threads of all ranks for each one that the processors have
USUAL_THREADS_PER_CORE = 2
MEMORY_SHARE = 0.8, 1.1  # of accelerators, in GiB for each GB in their name
ROUNDING = 0.05  # of memory as two programs measure it
_LONGEST_COUNT, LARGEST = 9, 1e15  # digits, and a number that is compared
_VERSION = re.compile(r"([A-Za-z][\w-]*)[ =]v?([0-9][\w.]*)")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
_GIGABYTES = re.compile(r"(?<![\w.])([0-9]{1,4}) ?GB(?![A-Za-z]|.*\bMIG\b)", re.IGNORECASE)
_ACCELERATORS = re.compile(  # at the start of a word: a processor may have chips
    r"(?<![a-z])(cuda|gpu|tpu|xpu|mps|hpu|npu|rocm|hip|ipu|neuron)", re.IGNORECASE
)
# torch has a build for each of these; others are driven by a plug-in beside a build for processors.
_WITH_OWN_BUILD = re.compile(r"cuda|gpu|xpu|mps|rocm|hip", re.IGNORECASE)
_PROCESSOR = re.compile(r"cpu(:[0-9]+)?", re.IGNORECASE)
_PARTS = re.compile(r"(?:mesh:)?([0-9]{1,9})(?:x([0-9]{1,9}))?(?::.*)?", re.DOTALL)


Relation = Callable[..., str | None]


@dataclass(frozen=True)
class Fact:
    """A key, others that state the same, and their relation; some may be broken (a warning)."""

    first: str
    others: str
    relation: Relation
    is_warning: bool = False


def _take(*readers: Callable[[Any], Any]) -> Callable[[Relation], Relation]:
    """Decorate a relation: it gets what ``readers`` make of the values, unless one makes None."""

    def decorate(relation: Relation) -> Relation:
        def compare(*values: object) -> str | None:
            read = [reader(value) for reader, value in zip(readers, values, strict=True)]
            return None if any(value is None for value in read) else relation(*read)

        return compare

    return decorate


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    """Return a count, also one that is written as a text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_COUNT:
        return int(value)
    return value if is_integer(value) and 0 <= value < 10**_LONGEST_COUNT else None


def _count_or_0(value: object) -> int:
    return _count(value) or 0


def _number(value: object) -> int | float | None:
    return max(-LARGEST, min(value, LARGEST)) if is_number(value) else None


def _written_number(value: object) -> int | float | None:
    """Return a number, also one that is written as a text; None for anything else."""
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return float(value) if "." in value else int(value)
    return _number(value)


def _any(value: object) -> object:
    return False if value is None else value


def read_versions(text: str) -> dict[str, str]:
    """Return the versions that a text names, such as torch and 2.13.0 of ``torch 2.13.0+cpu``."""
    return {name.casefold(): version.rstrip(".") for name, version in _VERSION.findall(text[:200])}


def _is_equal(value: object, logged: object) -> bool:
    """Return True for equal JSON values; a number may have lost digits to another precision."""
    if type(value) is type(logged) and value == logged:
        return True
    numbers = [number for number in (_number(value), _number(logged)) if number is not None]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=1e-6)
    return encode_canonically(value) == encode_canonically(logged)


def _repeat(value: object, logged: object) -> str | None:
    return None if logged is None or _is_equal(value, logged) else format_value(logged)


def _repeat_whole(value: object, logged: object) -> str | None:
    """Also report what the log does not say at all."""
    return "no such record" if logged is None else _repeat(value, logged)


@_take(_text, _text)
def _be_named(name: str, logged: str) -> str | None:
    return None if name.casefold() in logged.casefold() else format_value(logged)


def _be_asked(asked: object, used: object) -> str | None:
    return None if asked == "auto" else _repeat(asked, used)


def _be_asked_each(asked: object, used: object) -> str | None:
    """Compare settings, with what was used where a measurement decided."""
    if not isinstance(asked, dict) or used is None:
        return None
    measured = used if isinstance(used, dict) else {}
    wanted = {name: measured.get(name) if it == "auto" else it for name, it in asked.items()}
    return None if wanted == used else format_value(used)


@_take(_text, _text)
def _have_precision(ran: str, asked: str) -> str | None:
    names = [(name_precision(it) or "").replace("tf32", "fp32") for it in (ran, asked)]
    return None if "" in names or names[0] == names[1] else format_value(asked)


@_take(_text, _text)
def _be_known(precision: str, division: str) -> str | None:
    """Refuse a precision in the closed division that no peak is known for; T2 refuses a blank."""
    is_known = is_blank(precision) or name_precision(precision)
    return None if division != "closed" or is_known else f"one of {', '.join(PRECISIONS)}"


@_take(_text, _any, _any, _count_or_0)
def _come_from(seeds: str, seed: object, origin: object, number: int) -> str | None:
    """Compare how seeds were chosen: ``derived``, or ``given, from 7``."""
    given = re.fullmatch(r"given, from (-?[0-9]{1,20})", seeds)
    if seeds == "derived" or given is None:
        is_right = seeds == origin
    else:
        is_right = origin == "given" and seed in (False, int(given[1]) + number)
    return None if is_right or seed is False else format_value(f"{origin} {seed}")


@_take(_count, _count, _any)
def _use_threads(used: int, asked: int, parts_at_once: object) -> str | None:
    """Compare threads; those of generation may make a part of the images on each thread."""
    wanted = max(asked, _count_or_0(parts_at_once))
    return None if used == wanted or (parts_at_once == "auto" and used > asked) else str(wanted)


def _ask_threads(asked: object, used: object, parts_at_once: object) -> str | None:
    return None if _use_threads(used, asked, parts_at_once) is None else format_value(used)


@_take(_count, _count_or_0, _count, _count_or_0, _count_or_0)
def _fit_threads(of_rank: int, ranks: int, nodes: int, threads: int, cores: int) -> str | None:
    """Limit the threads of all ranks of a node."""
    most = THREADS_OF_RANKS_MAX * (threads or USUAL_THREADS_PER_CORE * cores)
    on_node = math.ceil(max(ranks, 1) / max(nodes, 1))
    return None if not most or of_rank * on_node <= most else f"at most {most // on_node:,}"


@_take(_count, _any, _any, _count_or_0, _count_or_0)
def _have_threads(of_rank: int, ranks: object, nodes: object, threads: int, cores: int) -> (
    str | None
):  # fmt: skip
    """Compare the threads of a rank with those of a node, unless there are far too many."""
    there = threads or USUAL_THREADS_PER_CORE * cores
    is_worse = _fit_threads(of_rank, ranks, nodes, threads, cores)
    return None if is_worse or not there or of_rank <= there else f"at most {there:,}"


@_take(_text, _count)
def _fill_ranks(parts: str, ranks: int) -> str | None:
    """Check that ranks make whole groups of so many: stages, matrices, parts of images, rows."""
    match = _PARTS.fullmatch(parts)
    count = int(match[1]) * int(match[2] or 1) if match else 1
    return None if count and ranks % count == 0 else f"a divisor of {ranks:,} ranks"


@_take(_number, _count, _count, _count)
def _place_ranks(ranks: float, nodes: int, accelerators: int, cores: int) -> str | None:
    """Check that each node has a rank, each accelerator one at most, and each core four at most."""
    most = nodes * (accelerators or RANKS_PER_CORE_MAX * cores)
    return None if nodes <= ranks <= most else f"from {nodes:,} (one on each node) to {most:,}"


@_take(_number, _count, _count)
def _share_ranks(each: float, ranks: int, nodes: int) -> str | None:
    fewest, most = math.ceil(ranks / max(nodes, 1)), ranks - nodes + 1
    return None if fewest <= each <= most else f"from {fewest:,} to {most:,}"


@_take(_text, _count)
def _be_one_of(device: str, accelerators: int) -> str | None:
    if _PROCESSOR.fullmatch(device) and accelerators:
        return f"one of {accelerators:,} accelerators on each node"
    is_there = accelerators or not _ACCELERATORS.search(device)
    return None if is_there else "a processor, since there is no accelerator"


@_take(_text, _text)
def _be_built_for(device: str, framework: str) -> str | None:
    is_right = "+cpu" not in framework or not _WITH_OWN_BUILD.search(device)
    return None if is_right else "a processor, as the build of the framework has it"


@_take(_text, _text)
def _be_device(device: str, described: str) -> str | None:
    """Compare devices that are known, and what two names say of memory."""
    one, two = find_device(device), find_device(described)
    sizes, others = (set(_GIGABYTES.findall(it[:200])) for it in (device, described))
    is_other = bool(one and two and one is not two)
    is_other |= bool(sizes and others and sizes.isdisjoint(others))
    return format_value(described) if is_other else None


@_take(_text, _text)
@lru_cache(maxsize=1024)  # the logs of a result say the same
def _be_framework(logged: str, described: str) -> str | None:
    """Check that two texts name a framework in common, with the same version if both do."""
    names = [set(map(str.casefold, _NAME.findall(text[:200]))) for text in (logged, described)]
    versions, others = read_versions(logged), read_versions(described)
    is_same = all(versions[name] == others[name] for name in versions.keys() & others.keys())
    return None if names[0] & names[1] and is_same else format_value(described)


@_take(_text, _any)
def _have_version(framework: str, software: object) -> str | None:
    """Compare versions of a framework with those of the packages that are listed."""
    packages = software if isinstance(software, Mapping) else {}
    listed = {str(name).casefold(): it for name, it in packages.items() if isinstance(it, str)}
    for name, version in read_versions(framework).items():
        other = re.match(r"[0-9][\w.]*", listed.get(name, version))
        if other and other[0].rstrip(".") != version:
            return f"{name} {other[0]}"
    return None


@_take(_text, _text)
def _begin(short: str, digest: str) -> str | None:
    return None if digest.startswith(short) else f"the beginning of {format_value(digest)}"


@_take(_written_number, _number)
def _be_alike(logged: float, described: float) -> str | None:
    """Compare counts and memory that two programs read."""
    tolerance = 0 if is_integer(logged) and is_integer(described) else ROUNDING
    is_near = math.isclose(logged, described, rel_tol=tolerance)
    return None if is_near else format_value(described)


@_take(_number, _number, _count)
def _fit_memory(parameters: float, gibibytes: float, count: int) -> str | None:
    """Check that a byte for each parameter fits into so many memories."""
    most = count * gibibytes * 2**30
    return None if most <= 0 or parameters <= most else f"at most {most:,.0f}, a byte each"


@_take(_number, _number, _count, _count)
def _fit_accelerators(parameters: float, memory: float, nodes: int, each: int) -> str | None:
    return _fit_memory(parameters, memory, nodes * each)


@_take(_number, _number)
def _be_at_most(count: float, most: float) -> str | None:
    return None if count <= most else f"at most {most:,}"


@_take(_number, _count)
def _share_cores(threads: float, cores: int) -> str | None:
    most = THREADS_PER_CORE_MAX * cores
    return None if cores <= threads <= most else f"from {cores:,} to {most:,}"


def _need_accelerators(_: object, accelerators: object) -> str | None:
    return "no such field, since there is no accelerator" if accelerators == 0 else None


@_take(_number, _text)
def _be_named_memory(gibibytes: float, accelerator: str) -> str | None:
    sizes = set(_GIGABYTES.findall(accelerator[:200]))
    gigabytes = int(sizes.pop()) if len(sizes) == 1 else gibibytes
    lowest, highest = (share * gigabytes for share in MEMORY_SHARE)
    return None if lowest <= gibibytes <= highest else f"from {lowest:g} to {highest:g}"


REPEATED = {  # of a file beside the logs, and the events that say the same
    "round": "submission_round",
    "benchmark": "submission_benchmark",
    "scale": "submission_scale",
    "division": "submission_division",
    "submitter": "submission_org",
    "system": "submission_platform",
    "definition_digest": "definition_digest",
    "code_digest": "code_digest",
    "task_digest": "task_digest",
    "seed": "seed",
}
_HOW = "log.implementation"
_MACHINE = "system.nodes system.processor_threads_per_node system.processor_cores_per_node"
_RANKS_OF = "system.nodes system.accelerators_per_node system.processor_cores_per_node"
_PARTS_AT_ONCE = "execution.own.parts_at_once"
_GROUPS = ("pipeline", "pipeline_stages", "tensor_ranks", "spatial_partitions", "all_reduce")
_COUNTED = (
    "nodes", "processor_cores_per_node", "processor_sockets_per_node",
    "processor_threads_per_node", "numa_nodes_per_node", "memory_gib_per_node",
    "accelerators_per_node", "accelerator_memory_gib",
)  # fmt: skip
_OF_ACCELERATORS = ("accelerator_memory_gib", "accelerator_interconnect", "accelerator_max_watts")
FACTS: tuple[Fact, ...] = (
    # what the files beside a log repeat of it
    *(Fact(f"{file}.{key}", f"log.{event}", _repeat)
      for file in ("configuration", "report") for key, event in REPEATED.items()),
    Fact("report.run", "log.number", _repeat),
    Fact("configuration.seeds", "log.seed log.seed.origin log.number", _come_from),
    Fact("configuration.hyperparameters.*", "log.*", _repeat_whole),
    Fact("configuration.framework", f"{_HOW}.framework", _be_named),
    *(Fact(f"configuration.execution.{name}", f"{_HOW}.execution.{name}", _be_asked)
      for name in ("precision", "compile", "threads", "micro_batch")),
    Fact("configuration.execution.own", f"{_HOW}.execution.own", _be_asked_each),
    Fact("configuration.execution.precision", f"{_HOW}.precision", _have_precision),
    Fact("configuration.execution.threads",
         f"{_HOW}.threads_per_rank configuration.{_PARTS_AT_ONCE}", _ask_threads),
    # a log in itself
    Fact(f"{_HOW}.precision", "log.submission_division", _be_known),
    Fact(f"{_HOW}.precision", f"{_HOW}.execution.precision", _have_precision),
    Fact(f"{_HOW}.threads_per_rank",
         f"{_HOW}.execution.threads {_HOW}.{_PARTS_AT_ONCE}", _use_threads),
    Fact(f"{_HOW}.device", f"{_HOW}.framework", _be_built_for),
    Fact(f"{_HOW}.weights", "log.weights_digest", _begin),
    *(Fact(f"{_HOW}.execution.own.{name}", f"{_HOW}.ranks", _fill_ranks) for name in _GROUPS),
    # a log and the system that is described
    Fact(f"{_HOW}.framework", "system.framework", _be_framework),
    Fact(f"{_HOW}.framework", "system.software", _have_version),
    Fact(f"{_HOW}.device", "system.accelerators_per_node", _be_one_of),
    Fact(f"{_HOW}.device", "system.accelerator", _be_device),
    Fact(f"{_HOW}.ranks", _RANKS_OF, _place_ranks),
    Fact(f"{_HOW}.ranks_per_node", f"{_HOW}.ranks system.nodes", _share_ranks),
    *(Fact(f"{_HOW}.{name}", f"system.{name}", _be_alike) for name in _COUNTED),
    Fact(f"{_HOW}.number_of_nodes", "system.nodes", _be_alike),
    Fact(f"{_HOW}.threads_per_rank", f"{_HOW}.ranks {_MACHINE}", _fit_threads),
    Fact(f"{_HOW}.threads_per_rank", f"{_HOW}.ranks {_MACHINE}", _have_threads, is_warning=True),
    Fact("log.model_parameters", "system.memory_gib_per_node system.nodes", _fit_memory),
    Fact("log.model_parameters", "system.accelerator_memory_gib system.nodes "
         "system.accelerators_per_node", _fit_accelerators),
    # a description in itself
    Fact("system.processor_sockets_per_node", "system.processor_cores_per_node", _be_at_most),
    Fact("system.processor_threads_per_node", "system.processor_cores_per_node", _share_cores),
    *(Fact(f"system.{name}", "system.accelerators_per_node", _need_accelerators)
      for name in _OF_ACCELERATORS),
    Fact("system.accelerator_memory_gib", "system.accelerator", _be_named_memory),
    Fact("system.framework", "system.software", _have_version),
)  # fmt: skip
"""All facts; those of one source come in the order in which they are reported."""
