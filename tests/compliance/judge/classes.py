"""How many cases of each class of cheat, mistake and hostile input are caught, and by what.

``python -m tests.compliance.judge.classes`` runs the tests of each class and prints a table: cases,
how many are caught, the findings that the tests name, and compliant variations that pass. A case is
one parameter of a test. ``--list`` prints the tests and runs nothing.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest

from cepheid.rules.host import ROOT

CODE = re.compile(r"\b[TSM][0-9]+\.[a-z][a-z_0-9]+\b")


def of(name: str, *tests: str) -> tuple[str, ...]:
    """Name tests of the file ``test_<name>.py``, wherever it lies; all where none is named.

    ``folder/name`` says in which folder.
    """
    folder, _, file_name = name.rpartition("/")
    (file,) = ROOT.glob(str(PurePosixPath("tests/**", folder, f"test_{file_name}.py")))
    path = file.relative_to(ROOT).as_posix()
    return tuple(f"{path}::test_{test}" for test in tests) or (path,)


@dataclass(frozen=True)
class Class:
    """The tests of a class: those whose cases must be caught, and those whose cases must pass."""

    caught: tuple[str, ...]
    passing: tuple[str, ...] = ()


CLASSES: Mapping[str, Class] = {
    "the base judges": Class(of(
        "continuous_integration", "a_submission_comes_without_the_rules_that_judge_it",
        "a_submitter_changes_only_their_own_folder",
        "the_base_judges_a_request_that_brings_its_own_judge")),
    "what changed is seen": Class(
        of("continuous_integration", "any_change_of_a_submission_is_seen",
           "a_stray_file_on_a_branch_is_found", "nothing_is_hidden_from_the_judge"),
        of("continuous_integration", "only_what_a_branch_changes_is_reported",
           "what_happens_on_the_base_branch_is_not_the_branch_s")),
    "equal results are a dispute": Class(
        of("continuous_integration", "a_copy_on_a_branch_is_refused_and_its_original_is_innocent")
        + of("recycled", "a_copy_of_a_result_of_a_former_round",
             "a_result_that_is_handed_in_twice", "a_folder_that_is_copied_as_it_is",
             "organisers_decide_a_dispute", "what_stood_on_the_base_branch_is_innocent")
        + of("damage", "a_result_that_two_teams_hand_in_counts_once",
             "three_teams_with_one_result_leave_the_first"),
        of("recycled", "honest_results_share_nothing", "coarse_metrics_may_agree")),
    "near copies": Class(
        of("near", "a_changed_copy_is_found") + of("recycled", "a_near_copy_within_a_result")
        + of("mixed", "a_mixture_is_found",
             "mixtures_of_many_results_are_found_in_bounded_time"),
        of("mixed", "honest_seeds_are_no_mixtures", "recorded_runs_are_no_mixtures")
        + of("near", "recorded_runs_are_apart", "few_evaluations_tell_nothing",
           "one_of_ten_thousand_pairs_of_seeds_is_a_false_alarm_at_most")),
    "what excuses a run": Class(
        of("aside", "what_excuses_a_run_is_not_proven_by_its_own_log",
           "a_completed_run_that_was_set_aside")
        + of("catalogue", "only_a_log_of_known_records_needs_no_proof_of_its_data"),
        of("aside", "honest_interruptions_are_notes")),
    "waivers": Class(
        of("submission_catalogue", "a_waiver_covers_nothing_else", "a_waiver_expires",
           "a_waiver_without_effect_is_a_finding"),
        of("submission_catalogue", "a_waiver_of_the_day_on_which_the_round_is_due_holds")),
    "bounds need no optional field": Class(
        of("peaks", "a_known_device_has_the_peaks_of_its_datasheet",
           "narrower_numbers_are_not_slower")
        + of("rules/rounds", "devices_are_known_by_many_names_and_none_is_guessed"),
        of("peaks", "honest_peaks_of_a_known_device",
           "a_processor_may_be_faster_than_its_datasheet")),
    "the same work takes the same time": Class(
        of("steady") + of("catalogue_clocks", "a_clock_that_cannot_be_true"),
        of("catalogue_clocks", "odd_clocks_that_are_true")),
    "a metric has possible values": Class(
        of("plausible", "a_loss_belongs_to_the_quality_beside_it", "no_estimator_beats_the_noise",
           "better_than_anything_ever_measured", "losses_that_no_training_has"),
        of("plausible", "every_recorded_curve_is_believed", "losses_that_a_training_has")),
    "facts agree": Class(
        of("facts", "what_others_contradict_is_found",
           "each_row_of_the_table_has_a_contradiction"),
        of("facts", "what_agrees_is_not")),
    "readings are a power": Class(
        of("readings", "readings_of_another_log_are_found",
           "coarse_or_few_readings_of_another_log_are_found",
           "readings_that_repeat_themselves_are_found", "the_same_readings_again_and_again")
        + of("damage", "a_reading_every_two_seconds_is_too_few", "power_in_another_unit"),
        of("readings", "the_same_load_with_its_own_noise_is_no_copy",
           "readings_that_tell_nothing_are_no_copies")),
    "files are what they say": Class(
        of("texts", "what_is_no_text_is_named", "a_readme_says_something"),
        of("texts", "a_readme_may_be_written_in_any_script", "texts_and_pictures_pass",
           "the_code_of_this_repository_is_text")),
    "weights that training starts from": Class(
        of("weights")
        + of("carried", "weights_are_found_in_every_disguise",
             "weights_in_many_small_files_are_found_together",
             "weights_beside_the_folders_of_code_are_found_once"),
        of("carried", "honest_code_holds_no_weights",
           "open_and_what_starts_from_given_weights_may_ship_some")),
    "provisional, and data that differ": Class(
        of("scores", "a_score_that_proves_nothing_yet_is_provisional")
        + of("site", "a_provisional_score_is_shown_and_never_ranked")
        + of("sources", "results_of_other_data_are_warned_on_all_sides",
             "weights_that_nobody_confirmed_are_compared"),
        of("sources", "what_the_definition_knows_is_compared_with_that")),
    "one damage, one finding": Class(
        of("damage", "one_damage_is_one_finding_for_each_log",
           "logs_that_are_numbered_from_one_are_one_mistake"),
        of("damage", "an_hour_of_other_output", "run_stop_in_the_name_of_a_file")),
    "audit": Class(of("containment") + of("newness")),
    "organisers": Class(
        of("decided") + of("dates")),
    "every single change of a log or a submission": Class(
        of("catalogue", "one_change_gives_one_finding", "an_uncertain_breach_is_a_warning")
        + of("submission_catalogue", "one_change_gives_one_finding"),
        of("compliant")),
}  # fmt: skip


class Outcomes:
    """Collects how each case ended, by its test."""

    def __init__(self) -> None:
        self.of: dict[str, Counter[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the outcome of a case, or of its fixtures where those failed."""
        if report.when == "call" or report.outcome != "passed":
            test = report.nodeid.partition("[")[0]
            self.of.setdefault(test, Counter())[report.outcome] += 1

    def count(self, selectors: Sequence[str]) -> Counter[str]:
        """Sum the outcomes of some tests or files."""
        chosen = (
            counts
            for test, counts in self.of.items()
            if any(test == one or test.startswith(f"{one}::") for one in selectors)
        )
        return sum(chosen, Counter())


def find_codes(selectors: Sequence[str]) -> list[str]:
    """Find the codes that tests name, or that their files name where the cases stand apart."""
    codes: set[str] = set()
    for selector in selectors:
        file, _, name = selector.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        used = text
        if name:
            tree = ast.parse(text)
            test = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
            names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
            parts = [test, *(node for node in tree.body if _defines(node, names))]
            used = "\n".join(map(ast.unparse, parts))
        codes |= set(CODE.findall(used))
    return sorted(codes)


def _defines(node: ast.stmt, names: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(target, ast.Name) and target.id in names for target in targets)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print the table; exit code 1 where a case is not caught."""
    words = sys.argv[1:] if argv is None else argv
    everything = [test for one in CLASSES.values() for test in (*one.caught, *one.passing)]
    if "--list" in words:
        print("\n".join(everything))
        return 0
    outcomes = Outcomes()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *everything], plugins=[outcomes])
    print(
        "\n| class | cases | caught | not tried here | findings | compliant variations that pass |"
    )
    print("|---|---|---|---|---|---|")
    for name, one in CLASSES.items():
        caught, passed = outcomes.count(one.caught), outcomes.count(one.passing)
        of_all = f"{passed['passed']} of {passed.total()}" if one.passing else ""
        cases = caught.total() - caught["skipped"]
        cells = (
            name, cases, caught["passed"], caught["skipped"] or "",
            ", ".join(find_codes(one.caught)), of_all,
        )  # fmt: skip
        print("|", " | ".join(map(str, cells)), "|")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
