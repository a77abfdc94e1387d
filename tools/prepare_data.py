"""`cepheid data`: prepare, verify or export a dataset."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.rules import definition, extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool
from cepheid.tools.run.costs import describe_bytes, find_disk

if TYPE_CHECKING:
    from cepheid.reference.data.store import Manifest
    from cepheid.tools.console.terminal import Terminal

EXPORTS = ("fits",)


COMMAND = read_command("data")


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare or verify a dataset, print where and what it is, and export it with ``--export``."""
    arguments = COMMAND.parse(argv)
    usual = definition.load(_find_benchmark(arguments.benchmark, arguments.scale), arguments.scale)
    chosen = _vary(usual, arguments.overrides)
    if arguments.limit is not None:
        from cepheid.reference.run.config import limit_samples

        chosen = limit_samples(chosen, arguments.limit)
    if arguments.propose_digest and chosen.data != usual.data:
        raise UserError(
            "--propose-digest freezes the dataset of the definition: leave out --limit and --set"
        )
    output = _choose_export_path(chosen, arguments)
    extras.require_for_data(chosen.extras)

    from cepheid.reference.data import generators, store, verification
    from cepheid.reference.session.observer import prepare_data
    from cepheid.tools.console.terminal import Terminal

    terminal = Terminal()
    if arguments.verify:
        folder = generators.folder(chosen.data, arguments.data)
        with terminal.count("verifying", "samples") as on_progress:
            manifest = verification.verify(folder, on_progress)
    else:
        if arguments.source:
            _lay_out(chosen, arguments.source, arguments.data, terminal)
        folder = prepare_data(chosen, arguments.data, terminal)
        manifest = store.read_manifest(folder)
    size = describe_bytes(sum(array.bytes for array in manifest.arrays.values()))
    terminal.tell(
        f"{folder}: {manifest.rows:,} samples of {manifest.generator}, {size}, "
        f"digest {manifest.digest}"
    )
    for line in generators.remarks(chosen.data, folder):
        terminal.tell(line)
    if arguments.verify_reader:
        return _verify_reader(folder, arguments.verify_reader, terminal)
    if arguments.propose_digest:
        verification.verify(folder)
        terminal.tell(_propose(chosen, manifest))
    if output:
        _export(chosen, folder, output, terminal)
    if chosen.data != usual.data:
        terminal.tell("other data: the definition has no digest to compare with")
        return EXIT_FINE
    if chosen.data_digest and manifest.digest != chosen.data_digest:
        terminal.tell(
            f"these are not the reference's data, which have the digest {chosen.data_digest}"
        )
        return EXIT_FINDINGS
    return EXIT_FINE


def _vary(usual: Definition, overrides: Sequence[str]) -> Definition:
    """Return the definition with the chosen variants of its data; UserError for other settings."""
    from cepheid.reference.run.config import parse_override

    known = {key: choices for key, choices in usual.variants.items() if key in usual.data}
    chosen: dict[str, str] = {}
    for key, text in map(parse_override, overrides):
        if key not in known:
            variants = f"all: {', '.join(known)}" if known else "there are none"
            raise UserError(
                f"--set {key}: the data of {usual.name} have no such variant"
                f"{did_you_mean(key, known)} ({variants})"
            )
        if text not in known[key]:
            guess = did_you_mean(text, known[key])
            raise UserError(f"--set {key}={text}: expected one of {', '.join(known[key])}{guess}")
        chosen[key] = text
    return usual.vary(chosen)


def _lay_out(chosen: Definition, given: Path, data: Path, terminal: "Terminal") -> None:
    """Lay the dataset out as it is distributed, from the folder in which a user has it.

    Nothing is done where it is prepared: what was unpacked may be deleted then.
    """
    from cepheid.reference.data import generators
    from cepheid.reference.data.layouts import laying_out

    target = generators.find_distributed_files(chosen.data, data)
    if target is None:
        raise UserError(f"--source {given}: the data of {chosen.name} are drawn here; leave it out")
    if generators.folder(chosen.data, data).exists():
        return
    disk, is_subset = find_disk(chosen), bool(chosen.data.get("is_subset"))
    share = disk[1] / disk[0] if disk and disk[0] and not is_subset else 0
    with terminal.count("unpacking", "MB") as on_progress:
        for line in laying_out.lay_out(target.name, given, target, on_progress, share, is_subset):
            terminal.tell(line)


def _verify_reader(folder: Path, read: Path, terminal: "Terminal") -> int:
    """Compare what a program read with the dataset. Exit code 1 where something differs."""
    from cepheid.reference.data import readers

    compared = list(readers.compare(folder, read))
    for line, _ in compared:
        terminal.tell(line)
    return EXIT_FINE if all(agrees for _, agrees in compared) else EXIT_FINDINGS


def _propose(chosen: Definition, manifest: "Manifest") -> str:
    counts = ", ".join(
        f"{key}: {manifest.parameters.get(key, chosen.data[key]):_}"
        for key in ("train_samples", "evaluation_samples")
    )
    return (
        f"benchmarks/{chosen.name}/benchmark.yaml, scales: {chosen.scale}: of these data\n"
        f"    data: {{…, {counts}}}\n"
        f"    data_digest: {manifest.digest}"
    )


def _choose_export_path(chosen: Definition, arguments: argparse.Namespace) -> Path | None:
    """Return the path of the export, None without one. Raises UserError for wrong use."""
    if not arguments.export:
        if arguments.output:
            raise UserError("--output names the file of an export: add --export fits")
        return None
    if arguments.export not in EXPORTS:
        raise UserError(
            f"--export {arguments.export}: expected {', '.join(EXPORTS)}"
            f"{did_you_mean(arguments.export, EXPORTS)}"
        )
    if chosen.data["generator"] != "galaxies":
        raise UserError(f"--export {arguments.export}: {chosen.name} has no galaxies")
    path: Path = arguments.output or Path(f"{chosen.name}-{chosen.scale}.{arguments.export}")
    if path.exists():
        raise UserError(f"{path}: already exists; delete it or give another --output")
    return path


def _find_benchmark(name: str, scale: str) -> str:
    """Return the benchmark ``name``, or one with the data of the generator ``name``.

    The latter only where all benchmarks with that generator have the same data at this scale.
    """
    if name in definition.names():
        return name
    scaled = [known for known in definition.names() if scale in definition.scales(known)]
    users = [definition.load(known, scale) for known in scaled]
    users = [user for user in users if user.data["generator"] == name]
    is_one_dataset = users and all(user.data == users[0].data for user in users)
    return users[0].name if is_one_dataset else name


def _export(chosen: Definition, folder: Path, output: Path, terminal: "Terminal") -> None:
    from cepheid.reference.data import galaxies
    from cepheid.reference.data.galaxies import fits

    sky = galaxies.load(folder)
    parameters = galaxies.parameters_of(chosen.data)
    with terminal.count("exporting", "images") as on_progress:
        fits.export(sky, parameters, chosen.train_samples, output, on_progress)
    terminal.tell(f"{output}: {describe_bytes(output.stat().st_size)} of FITS")


if __name__ == "__main__":
    run_tool(main)
