"""The hyperparameters of kfac, its learning-rate schedule and the options of K-FAC.

``Literal`` fields list what this implementation knows, in the open division too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, cast, get_args

from cepheid.benchmarks.resnet50.hyperparameters import ImageHyperparameters
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.optim.schedules import Schedule, linear_warmup
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.parallel.plan import find_shape
from cepheid.rules.errors import UserError
from cepheid.second_order import Options, UseError
from cepheid.second_order.fisher import refuse_many
from cepheid.second_order.number_formats import Format
from cepheid.second_order.options import Fisher, Inverse, Rescaling, Sums

DAMPING_RANGE = 10.0  # by which factor a schedule changes the damping


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(ImageHyperparameters):
    """The hyperparameters of kfac."""

    opt_preconditioner: Literal["kfac", "none"]
    opt_momentum_follows_rate: bool
    opt_weight_normalisation: bool
    opt_learning_rate_decay_start_epochs: float
    kfac_damping: float
    kfac_batch_norm_damping: float
    kfac_average_decay: float
    kfac_rescaling: Rescaling
    kfac_kl_clip: float
    kfac_stale: bool
    kfac_stale_tolerance: float
    kfac_fisher: Literal[
        "empirical", "sampled", "sampled_2", "sampled_4", "sampled_8", "exact", "gauss_newton"
    ]
    kfac_inverse: Inverse
    mixup_alpha: float
    random_erasing_probability: float


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The execution settings that only kfac has."""

    kfac_factor_format: Format = "float32"
    kfac_gradients: Format = "float32"
    kfac_products: Literal["as_model", "fp32", "bf16"] = "as_model"


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What only studies compare: ``costs.yaml`` and ``epochs.yaml`` say which has which."""

    kfac_inverses: Literal["distributed", "everywhere"] = "distributed"
    kfac_symmetric: Literal["on", "off"] = "on"
    kfac_overlap: Literal["on", "off"] = "off"
    kfac_simulated_ranks: str = "off"  # or a number
    kfac_stale_interval: str = "off"  # or the steps between two refreshes of every factor
    kfac_sums: Sums = "float32"


@dataclass(frozen=True)
class HeldSchedule(Schedule):
    """A schedule that stays at its peak for ``warmup_samples`` before it decays.

    It rises from 0 within the first ``rise_samples``.
    """

    rise_samples: float = 0

    def rate(self, samples: int) -> float:
        """Return the learning rate of the step that completes ``samples`` training samples."""
        return super().rate(samples) * linear_warmup(samples, self.rise_samples)


def make_schedule(config: RunConfig) -> HeldSchedule:
    """Return a schedule that rises, stays at its peak and decays from one epoch to another."""
    values = config.read(Hyperparameters)
    epoch = config.definition.train_samples
    return HeldSchedule(
        peak=values.opt_base_learning_rate,
        start=values.opt_base_learning_rate,
        end=values.opt_end_learning_rate,
        warmup_samples=values.opt_learning_rate_decay_start_epochs * epoch,
        decay_samples=values.opt_learning_rate_decay_epochs * epoch,
        decay=values.opt_learning_rate_decay_schedule,
        power=values.opt_learning_rate_decay_poly_power,
        rise_samples=values.opt_learning_rate_warmup_epochs * epoch,
    )


@dataclass(frozen=True)
class DampingSchedule:
    """λ over a run: from ``start`` to ``end`` in equal ratios, and then ``end``."""

    start: float
    end: float
    samples: float

    def find_damping(self, samples: int) -> float:
        """Return λ of the step that completes ``samples`` training samples."""
        share = min(1.0, samples / self.samples)
        return float(self.start * (self.end / self.start) ** share)


def make_damping_schedule(config: RunConfig) -> DampingSchedule:
    """Return the schedule of λ: constant, or from or to a tenth of ``kfac_damping``.

    Raises UserError for a schedule without K-FAC.
    """
    values = config.read(Hyperparameters)
    chosen = str(config.definition.model.get("kfac_damping_schedule", "constant"))
    if chosen != "constant" and values.opt_preconditioner != "kfac":
        raise UserError(
            f"--set kfac_damping_schedule={chosen}: without K-FAC nothing is damped; fix: leave it "
            "out"
        )
    damping = values.kfac_damping
    start = damping / DAMPING_RANGE if chosen == "rising" else damping
    end = damping / DAMPING_RANGE if chosen == "falling" else damping
    epochs = values.opt_learning_rate_decay_epochs
    return DampingSchedule(start, end, epochs * config.definition.train_samples)


def make_options(config: RunConfig, ranks: Ranks) -> Options:
    """Return the options of K-FAC; raise UserError for settings that exclude each other."""
    values = config.read(Hyperparameters)
    settings, switches = config.execution.read(Settings), config.execution.read(Switches)
    parallelism = config.execution.parallelism
    is_kfac = values.opt_preconditioner == "kfac"
    if not is_kfac:
        _refuse_without_effect({**asdict(settings), **asdict(switches)}, "opt_preconditioner=kfac")
    is_sharded = parallelism.weight_update == "sharded"
    is_distributed = switches.kfac_inverses == "distributed"
    if is_kfac and is_sharded and config.execution.precision == "fp16":
        raise UserError(
            "--set precision=fp16: with weight_update=sharded each rank would detect overflows "
            "in its own gradients only; use bf16, or leave weight_update replicated"
        )
    if is_sharded and not is_distributed:
        raise UserError(
            "--set weight_update=sharded: with kfac_inverses=everywhere no rank owns a layer; set "
            "kfac_inverses=distributed, or leave weight_update replicated"
        )
    gradients = settings.kfac_gradients
    if not is_distributed:  # then every rank has all gradients and directions, and sends none
        _refuse_without_effect({"kfac_gradients": gradients}, "kfac_inverses=distributed")
    if is_kfac and not values.kfac_stale and config.execution.compile == "on":
        raise UserError(
            "--set compile=on: with kfac_stale=false factors are due in every step, and only steps "
            "without any are compiled; fix: leave compile off, or set kfac_stale=true"
        )
    simulated, every = _parse_simulated(config, ranks), switches.kfac_stale_interval
    if not values.kfac_stale:
        _refuse_without_effect({"kfac_stale_interval": every}, "kfac_stale=true")
    fisher, drawn = parse_fisher(values.kfac_fisher)
    if is_kfac and fisher in ("exact", "gauss_newton"):
        try:
            refuse_many(fisher, int(config.definition.model["classes"]))
        except UseError as error:  # with those of all other settings in a plan
            raise UserError(str(error)) from error
    _, columns = find_shape(parallelism.all_reduce, ranks.world_size, ranks.ranks_per_node)
    return Options(
        damping=values.kfac_damping,
        average_decay=values.kfac_average_decay,
        batch_norm_damping=values.kfac_batch_norm_damping,
        rescaling=values.kfac_rescaling,
        kl_clip=values.kfac_kl_clip,
        fisher=fisher,
        fisher_samples=drawn,
        inverse=values.kfac_inverse,
        distribute_inverse=is_distributed,
        symmetric=switches.kfac_symmetric == "on",
        factor_format=settings.kfac_factor_format,
        gradient_format=gradients,
        overlap=switches.kfac_overlap == "on",
        simulated_ranks=simulated,
        sums=switches.kfac_sums,
        ranks_per_node=columns if parallelism.all_reduce.way != "flat" else 0,
        stale=values.kfac_stale,
        stale_tolerance=values.kfac_stale_tolerance,
        stale_interval=0 if every == "off" else int(every),
        average_gradients=is_sharded,
        shard_update=is_sharded,
    )


def _refuse_without_effect(settings: Mapping[str, str], needed: str) -> None:
    """Raise UserError if one of the settings, which have no effect without another, was chosen."""
    usual = {**asdict(Settings()), **asdict(Switches())}
    for setting, value in settings.items():
        if value != usual[setting]:
            raise UserError(
                f"{setting}={value}: it has no effect without {needed}; "
                f"fix: set {needed} too, or leave {setting} out"
            )


def _parse_simulated(config: RunConfig, ranks: Ranks) -> int:
    """Return the number of simulated ranks, 0 for none.

    Raises UserError where they would round nothing, or not as real ranks would.
    """
    switches = config.execution.read(Switches)
    simulated, sums = switches.kfac_simulated_ranks, switches.kfac_sums
    if simulated == "off":
        _refuse_without_effect({"kfac_sums": sums}, "kfac_simulated_ranks=8")
        return 0
    problem = ""
    if ranks.world_size > 1:
        problem = f"this is for one rank, and there are {ranks.world_size}"
    elif config.execution.parallelism.weight_update == "sharded":
        problem = "with weight_update=sharded the formats of gradients have no effect"
    elif switches.kfac_overlap == "on":
        problem = "nothing is sent, so kfac_overlap=on has nothing to send early"
    elif int(simulated) > (samples := _count_samples_at_once(config)):
        problem = f"{samples} samples at once cannot be shared among so many ranks"
    if problem:
        raise UserError(
            f"--set kfac_simulated_ranks={simulated}: {problem}; fix: leave it out, and kfac_sums"
        )
    if sums != "float32" and config.execution.read(Settings).kfac_factor_format == "float32":
        raise UserError(
            f"--set kfac_simulated_ranks={simulated} --set kfac_sums={sums}: factors travel in "
            "float32, so their sums are not rounded; fix: set kfac_factor_format=float21 too, or "
            "leave kfac_sums out"
        )
    return int(simulated)


def _count_samples_at_once(config: RunConfig) -> int:
    """Return the samples of a forward pass of one rank, as far as the settings say them."""
    asked, batch = config.execution.micro_batch, config.global_batch_size
    return min(int(asked), batch) if asked.isdecimal() else batch


def parse_fisher(chosen: str) -> tuple[Fisher, int]:
    """Return the Fisher matrix and the labels drawn for each sample: 4 for ``sampled_4``."""
    if chosen in get_args(Fisher):
        return cast(Fisher, chosen), 1
    return "sampled", int(chosen.removeprefix("sampled_"))
