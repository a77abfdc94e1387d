"""What states one quantity and must agree: ``FACTS`` (T14, S2, S14).

A key begins with its source, then come the names that lead to the value; ``*`` is any name. Names
of a log lead into the value of an event, or into its metadata.

A relation gets what the first key says, and what the others say, None where one says nothing. It
returns what was expected, or None if they agree. A log may say anything, so types are looked at
first.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from cepheid.compliance.finding import encode_canonically, format_value
from cepheid.rules.events import is_blank, is_integer, is_number
from cepheid.rules.systems import PRECISIONS, find_device, name_precision

THREADS_PER_CORE_MAX = 16
RANKS_PER_CORE_MAX = 4
THREADS_OF_RANKS_MAX = 4  # threads of all ranks for each one that the processors have
USUAL_THREADS_PER_CORE = 2
MEMORY_SHARE = 0.8, 1.1  # of accelerators, in GiB for each GB in their name
ROUNDING = 0.05  # of memory as two programs measure it
_LONGEST_COUNT = 9  # digits
_VERSION = re.compile(r"([A-Za-z][\w-]*)[ =]v?([0-9][\w.]*)")
_NAME = re.compile(r"[A-Za-z][\w-]*")
_GIGABYTES = re.compile(r"(?<![\w.])([0-9]{1,4}) ?GB(?![A-Za-z]|.*\bMIG\b)", re.IGNORECASE)
_ACCELERATORS = re.compile(r"cuda|gpu|tpu|xpu|mps|hpu|npu|rocm|hip|ipu|neuron", re.IGNORECASE)
# torch has a build for each of these; others are driven by a plug-in beside a build for processors.
_WITH_OWN_BUILD = re.compile(r"cuda|gpu|xpu|mps|rocm|hip", re.IGNORECASE)
_PROCESSOR = re.compile(r"cpu(:[0-9]+)?", re.IGNORECASE)
_PARTS = re.compile(r"(?:mesh:)?([0-9]{1,9})(?:x([0-9]{1,9}))?(?::.*)?", re.DOTALL)


@dataclass(frozen=True)
class Fact:
    """A key, others that state the same, and their relation; some may be broken (a warning)."""

    first: str
    others: str
    relation: Callable[..., str | None]
    is_warning: bool = False


def read_versions(text: str) -> dict[str, str]:
    """Return the versions that a text names, such as torch and 2.13.0 of ``torch 2.13.0+cpu``."""
    return {name.casefold(): version.rstrip(".") for name, version in _VERSION.findall(text[:200])}


def is_equal(value: object, logged: object) -> bool:
    """Return True for equal JSON values; a number may have lost digits to another precision."""
    if type(value) is type(logged) and value == logged:
        return True
    numbers = [v for v in (value, logged) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=1e-6)
    return encode_canonically(value) == encode_canonically(logged)


def _repeat(value: object, logged: object) -> str | None:
    return None if logged is None or is_equal(value, logged) else format_value(logged)


def _repeat_whole(value: object, logged: object) -> str | None:
    """Also report what the log does not say at all."""
    return "no such record" if logged is None else _repeat(value, logged)


def _be_named(name: object, logged: object) -> str | None:
    if not isinstance(name, str) or not isinstance(logged, str):
        return None
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


def _have_precision(ran: object, asked: object) -> str | None:
    names = [name_precision(it) if isinstance(it, str) else None for it in (ran, asked)]
    alike = {name.replace("tf32", "fp32") for name in names if name}
    return None if None in names or len(alike) == 1 else format_value(asked)


def _be_known(precision: object, division: object) -> str | None:
    """Refuse a precision in the closed division that no peak is known for; T2 refuses a blank."""
    is_known = not isinstance(precision, str) or is_blank(precision) or name_precision(precision)
    return None if division != "closed" or is_known else f"one of {', '.join(PRECISIONS)}"


def _come_from(seeds: object, seed: object, origin: object, number: object) -> str | None:
    """Compare how seeds were chosen: ``derived``, or ``given, from 7``."""
    if not isinstance(seeds, str) or seed is None:
        return None
    given = re.fullmatch(r"given, from (-?[0-9]{1,20})", seeds)
    if seeds == "derived" or given is None:
        return None if seeds == origin else format_value(origin)
    first = int(given[1]) + (number if is_integer(number) else 0)
    is_right = origin == "given" and not (is_integer(seed) and seed != first)
    return None if is_right else format_value(f"{origin} {seed}")


def _read_count(value: object) -> int | None:
    """Return a count, also one that is written as a text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= _LONGEST_COUNT:
        return int(value)
    return value if is_integer(value) and 0 <= value < 10**_LONGEST_COUNT else None


def _use_threads(used: object, threads: object, parts_at_once: object) -> str | None:
    """Compare threads; those of generation may make a part of the images on each thread."""
    asked, parts, count = _read_count(threads), _read_count(parts_at_once), used
    if asked is None or not is_integer(count) or count == max(asked, parts or 0):
        return None
    if parts_at_once == "auto" and count > asked:
        return None
    return str(max(asked, parts or 0))


def _ask_threads(asked: object, used: object, parts_at_once: object) -> str | None:
    return None if _use_threads(used, asked, parts_at_once) is None else format_value(used)


def _fit_threads(used: object, ranks: object, *machine: object) -> str | None:
    """Limit the threads of all ranks of a node."""
    counts = _count_threads(used, ranks, *machine)
    if counts is None:
        return None
    of_rank, of_node, there = counts
    most = THREADS_OF_RANKS_MAX * there
    return None if of_node <= most else f"at most {most * of_rank // of_node:,}"


def _have_threads(used: object, ranks: object, *machine: object) -> str | None:
    """Compare the threads of a rank with those of a node, unless there are far too many."""
    counts = _count_threads(used, ranks, *machine)
    if counts is None or _fit_threads(used, ranks, *machine):
        return None
    return None if counts[0] <= counts[2] else f"at most {counts[2]:,}"


def _count_threads(
    used: object, ranks: object, nodes: object, threads: object, cores: object
) -> tuple[int, int, int] | None:
    """Return the threads of a rank and of all ranks of a node, and those that the node has."""
    of_rank, known, machines = _read_count(used), _read_count(ranks), _read_count(nodes)
    there = _read_count(threads) or USUAL_THREADS_PER_CORE * (_read_count(cores) or 0)
    if not of_rank or not machines or not there:
        return None
    return of_rank, of_rank * max(1, math.ceil((known or 0) / machines)), there


def _fill_ranks(parts: object, ranks: object) -> str | None:
    """Check that ranks make whole groups of so many: stages, matrices, parts of images, rows."""
    match = _PARTS.fullmatch(parts) if isinstance(parts, str) else None
    count = int(match[1]) * int(match[2] or 1) if match else None
    if count is None or not is_integer(ranks) or ranks < 1:
        return None
    return None if count and ranks % count == 0 else f"a divisor of {ranks:,} ranks"


def _place_ranks(ranks: object, nodes: object, accelerators: object, cores: object) -> str | None:
    """Check that each node has a rank, each accelerator one at most, and each core four at most."""
    counts = [_read_count(it) for it in (nodes, accelerators, cores)]
    if not is_integer(ranks) or None in counts:
        return None
    fewest, of_node, of_cores = (count or 0 for count in counts)
    most = fewest * (of_node or RANKS_PER_CORE_MAX * of_cores)
    is_right = fewest <= ranks <= most
    return None if is_right else f"from {fewest:,} (one on each node) to {most:,}"


def _share_ranks(of_node: object, ranks: object, nodes: object) -> str | None:
    counts = [_read_count(it) for it in (of_node, ranks, nodes)]
    if None in counts or not all(counts):
        return None
    each, count, machines = (count or 0 for count in counts)
    fewest, most = math.ceil(count / machines), count - machines + 1
    return None if fewest <= each <= most else f"from {fewest:,} to {most:,}"


def _be_one_of(device: object, accelerators: object) -> str | None:
    if not isinstance(device, str) or not is_integer(accelerators):
        return None
    if _PROCESSOR.fullmatch(device) and accelerators:
        return f"one of {accelerators:,} accelerators on each node"
    if _ACCELERATORS.search(device) and not accelerators:
        return "a processor, since there is no accelerator"
    return None


def _be_built_for(device: object, framework: object) -> str | None:
    is_for_processors = isinstance(framework, str) and "+cpu" in framework
    if is_for_processors and isinstance(device, str) and _WITH_OWN_BUILD.search(device):
        return "a processor, as the build of the framework has it"
    return None


def _be_device(device: object, described: object) -> str | None:
    """Compare devices that are known, and what two names say of memory."""
    if not isinstance(device, str) or not isinstance(described, str):
        return None
    known = find_device(device), find_device(described)
    sizes = [set(_GIGABYTES.findall(it[:200])) for it in (device, described)]
    is_other = all(known) and known[0] is not known[1]
    is_other |= bool(sizes[0] and sizes[1] and sizes[0].isdisjoint(sizes[1]))
    return format_value(described) if is_other else None


@lru_cache(maxsize=1024)  # the logs of a result say the same
def _name_one_framework(logged: str, described: str) -> bool:
    """Return True if two texts name a framework in common, with the same version if both do."""
    names = [set(map(str.casefold, _NAME.findall(text[:200]))) for text in (logged, described)]
    versions, others = read_versions(logged), read_versions(described)
    same = versions.keys() & others.keys()
    return bool(names[0] & names[1]) and all(versions[name] == others[name] for name in same)


def _be_framework(logged: object, described: object) -> str | None:
    if not isinstance(logged, str) or not isinstance(described, str):
        return None
    return None if _name_one_framework(logged, described) else format_value(described)


def _have_version(framework: object, software: object) -> str | None:
    """Compare versions of a framework with those of the packages that are listed."""
    if not isinstance(framework, str) or not isinstance(software, Mapping):
        return None
    listed = {str(name).casefold(): it for name, it in software.items() if isinstance(it, str)}
    for name, version in read_versions(framework).items():
        other = re.match(r"[0-9][\w.]*", listed.get(name, version))
        if other and other[0].rstrip(".") != version:
            return f"{name} {other[0]}"
    return None


def _begin(short: object, digest: object) -> str | None:
    if not isinstance(short, str) or not isinstance(digest, str) or digest.startswith(short):
        return None
    return f"the beginning of {format_value(digest)}"


def _be_alike(logged: object, described: object) -> str | None:
    """Compare counts and memory that two programs read."""
    if not is_number(logged) or not is_number(described):
        return None
    tolerance = 0 if is_integer(logged) and is_integer(described) else ROUNDING
    is_near = math.isclose(logged, described, rel_tol=tolerance)
    return None if is_near else format_value(described)


def _fit_memory(parameters: object, nodes: object, memory: object, *of: object) -> str | None:
    """Check that a byte for each parameter fits into all memory, and into that of accelerators."""
    machines, (of_node, of_accelerator) = _read_count(nodes), of
    rooms = [memory] + ([of_accelerator] if is_number(of_accelerator) else [])
    counts = [1, _read_count(of_node) or 0]
    for count, room in zip(counts, rooms, strict=False):
        if is_integer(parameters) and machines and is_number(room):
            most = machines * count * room * 2**30
            if count and 0 < most < parameters:
                return f"at most {most:,.0f}, a byte each in {room:g} GiB"
    return None


def _be_at_most(count: object, most: object) -> str | None:
    is_right = not is_number(count) or not is_number(most) or count <= most
    return None if is_right else f"at most {format_value(most)}"


def _share_cores(threads: object, cores: object) -> str | None:
    if not is_integer(threads) or not is_integer(cores):
        return None
    most = THREADS_PER_CORE_MAX * cores
    return None if cores <= threads <= most else f"from {cores:,} to {most:,}"


def _need_accelerators(_: object, accelerators: object) -> str | None:
    return "no such field, since there is no accelerator" if accelerators == 0 else None


def _be_named_memory(gibibytes: object, accelerator: object) -> str | None:
    sizes = _GIGABYTES.findall(accelerator[:200]) if isinstance(accelerator, str) else []
    if len(set(sizes)) != 1 or not is_number(gibibytes):
        return None
    lowest, highest = (share * int(sizes[0]) for share in MEMORY_SHARE)
    is_right = lowest <= gibibytes <= highest
    return None if is_right else f"from {lowest:g} to {highest:g}, as its name says {sizes[0]} GB"


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
_MEMORY = " ".join(
    f"system.{name}"
    for name in ("nodes", "memory_gib_per_node", "accelerators_per_node", "accelerator_memory_gib")
)
_PARTS_AT_ONCE = "execution.own.parts_at_once"
_GROUPS = ("pipeline", "pipeline_stages", "tensor_ranks", "spatial_partitions", "all_reduce")
_COUNTED = (
    "nodes", "processor_cores_per_node", "processor_sockets_per_node",
    "processor_threads_per_node", "numa_nodes_per_node", "memory_gib_per_node",
    "accelerators_per_node", "accelerator_memory_gib",
)  # fmt: skip
_OF_ACCELERATORS = ("accelerator_memory_gib", "accelerator_interconnect")
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
    Fact("log.model_parameters", _MEMORY, _fit_memory),
    # a description in itself
    Fact("system.processor_sockets_per_node", "system.processor_cores_per_node", _be_at_most),
    Fact("system.processor_threads_per_node", "system.processor_cores_per_node", _share_cores),
    *(Fact(f"system.{name}", "system.accelerators_per_node", _need_accelerators)
      for name in _OF_ACCELERATORS),
    Fact("system.accelerator_memory_gib", "system.accelerator", _be_named_memory),
    Fact("system.framework", "system.software", _have_version),
)  # fmt: skip
"""All facts; those of one source come in the order in which they are reported."""
