"""Keys of ``--set`` that have become one with others; round v1.0 still accepts the old ones.

Command lines of CI and of submitters' ``run.sh`` have them, and so do the logs that
`cepheid audit` repeats.
"""

from collections.abc import Callable, Mapping, Sequence

from cepheid.rules.errors import UserError

PIPELINE = ("pipeline_stages", "pipeline_schedule", "pipeline_micro_batches")


def replace_old_keys(overrides: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the overrides with today's keys, and a note on each key that is no more.

    Raises UserError where an old key had no effect without another one that is missing.
    """
    given = dict(each.split("=", 1) for each in overrides if "=" in each)
    current, notes = list(overrides), []
    for old_keys, join in JOINED.items():
        old = {key: given[key] for key in old_keys if key in given}
        if not old:
            continue
        current = [each for each in current if each.partition("=")[0].strip() not in old]
        joined = join(old, given)
        current += [joined] if joined else []
        meant = f"write --set {joined}" if joined else "leave it out"
        was = " ".join(f"--set {key}={text}" for key, text in old.items())
        notes.append(f"{was}: this round still accepts it; from the next one on, {meant}")
    return current, tuple(notes)


def _join_mesh(old: Mapping[str, str], given: Mapping[str, str]) -> str:
    rows, way = old["mesh_rows"], given.get("all_reduce", "flat")
    if rows == "auto":
        return ""
    if way != "mesh":
        raise UserError(
            f"mesh_rows={rows}: it has no effect without all_reduce=mesh; "
            f"fix: set all_reduce=mesh:{rows}"
        )
    return f"all_reduce=mesh:{rows}"


def _join_pipeline(old: Mapping[str, str], given: Mapping[str, str]) -> str:
    stages, schedule, micro_batches = (old.get(key) for key in PIPELINE)
    if stages == "1" and (schedule or "1f1b", micro_batches or "4") == ("1f1b", "4"):
        return "pipeline=1"
    if stages in (None, "1"):
        raise UserError(
            f"{' '.join(f'{key}={text}' for key, text in old.items())}: it has no effect without "
            f"stages; fix: set pipeline=2:{schedule or '1f1b'}:{micro_batches or 4}"
        )
    return f"pipeline={stages}:{schedule or '1f1b'}:{micro_batches or 4}"


JOINED: Mapping[tuple[str, ...], Callable[[Mapping[str, str], Mapping[str, str]], str]] = {
    ("mesh_rows",): _join_mesh,
    PIPELINE: _join_pipeline,
}
"""By old keys: what returns the setting that stands for them, given all overrides."""
