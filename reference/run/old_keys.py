"""Keys of ``--set`` that are no more; round v1.0 still accepts them, with a note.

Command lines of CI and of submitters' ``run.sh`` have them, and so do the logs that
`cepheid audit` repeats. Some became one key, and others stand in the studies that compare them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from cepheid.rules.errors import UserError

Texts = Mapping[str, str]


def replace_old_keys(
    overrides: Sequence[str], known: Collection[str] = ("all_reduce", "pipeline")
) -> tuple[Sequence[str], tuple[str, ...]]:
    """Return the overrides with today's keys, and a note on each key that is no more.

    ``known`` are the keys that the benchmark has today. Raises UserError where an old key had no
    effect without another one that is missing.
    """
    pairs = (each.partition("=") for each in overrides)
    given = {key.strip(): text.strip() for key, _, text in pairs}
    current, notes = list(overrides), []
    for (today, old_keys), replace in REPLACED.items():
        old = {key: given[key] for key in old_keys if key in given and key not in known}
        if not old or today not in known:
            continue
        current = [each for each in current if each.partition("=")[0].strip() not in old]
        setting = replace(old, given)
        current += [setting] if setting else []
        was = " ".join(f"--set {key}={text}" for key, text in old.items())
        fix = f"write --set {setting}" if setting else "leave it out"
        notes.append(f"{was}: this round still accepts it; from the next one on, {fix}")
    return current, tuple(notes)


def _join_mesh(old: Texts, given: Texts) -> str:
    rows, way = old["mesh_rows"], given.get("all_reduce", "flat")
    if rows == "auto":
        return ""
    if way != "mesh":
        raise UserError(
            f"mesh_rows={rows}: it has no effect without all_reduce=mesh; "
            f"fix: set all_reduce=mesh:{rows}"
        )
    return f"all_reduce=mesh:{rows}"


def _join_pipeline(old: Texts, given: Texts) -> str:
    stages = old.get("pipeline_stages", "1")
    schedule = old.get("pipeline_schedule", "1f1b")
    micro_batches = old.get("pipeline_micro_batches", "4")
    if stages == "1" and (schedule, micro_batches) == ("1f1b", "4"):
        return "pipeline=1"
    if stages == "1":
        texts = " ".join(f"{key}={text}" for key, text in old.items())
        raise UserError(
            f"{texts}: it has no effect without stages; "
            f"fix: set pipeline=2:{schedule}:{micro_batches}"
        )
    return f"pipeline={stages}:{schedule}:{micro_batches}"


def _join_formats(old: Texts, given: Texts) -> str:
    half = old.get("kfac_half_factors", "off")
    if old.get("kfac_float21", "off") == "off":
        return f"kfac_factor_format={'float32' if half == 'off' else half}"
    if half != "off":
        raise UserError(
            f"--set kfac_half_factors={half}: factors already travel as float21; fix: set "
            f"kfac_factor_format=float21 or kfac_factor_format={half} instead of both"
        )
    return "kfac_factor_format=float21"


def _leave_out(old: Texts, given: Texts) -> str:
    """Return no setting: the value is what each run has. Raises UserError for another value."""
    for key, text in old.items():
        if text != OF_STUDIES[key]:
            raise UserError(
                f"--set {key}={text}: only studies compare it now (cepheid measure costs kfac, "
                f"cepheid measure epochs kfac --compare formats); fix: leave {key} out"
            )
    return ""


OF_STUDIES = {
    "kfac_inverses": "distributed",
    "kfac_symmetric": "on",
    "kfac_overlap": "off",
    "kfac_simulated_ranks": "off",
    "kfac_sums": "float32",
}
"""By the old keys of kfac that only studies have now: the value that each run has."""

REPLACED: Mapping[tuple[str, tuple[str, ...]], Callable[[Texts, Texts], str]] = {
    ("all_reduce", ("mesh_rows",)): _join_mesh,
    ("pipeline", ("pipeline_stages", "pipeline_schedule", "pipeline_micro_batches")): (
        _join_pipeline
    ),
    ("kfac_factor_format", ("kfac_float21", "kfac_half_factors")): _join_formats,
    ("kfac_factor_format", tuple(OF_STUDIES)): _leave_out,
}
"""By today's key and the old ones: what returns the setting that stands for these.

It takes the old settings and all overrides; "" leaves them out.
"""
