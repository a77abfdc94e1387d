"""The hyperparameters of kfac, its learning-rate schedule and the options of K-FAC.

``Literal`` fields list what this implementation knows, in the open division too.
"""

from dataclasses import dataclass, fields
from typing import Literal, cast, get_args

from cepheid.benchmarks.resnet50.hyperparameters import ImageHyperparameters
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.optim.schedules import Schedule, linear_warmup
from cepheid.reference.run.config import RunConfig, refuse_without_effect
from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.reference.torch.parallel.mesh import find_shape
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


Switch = Literal["on", "off"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The execution settings that only kfac has."""

    kfac_inverses: Literal["distributed", "everywhere"]
    kfac_symmetric: Switch
    kfac_float21: Switch
    kfac_half_factors: Literal["off", "float16", "bfloat16"]
    kfac_gradients: Format
    kfac_overlap: Switch
    kfac_products: Literal["as_model", "fp32", "bf16"]


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
    values = parse_hyperparameters(Hyperparameters, config.hyperparameters)
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
    values = parse_hyperparameters(Hyperparameters, config.hyperparameters)
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
    values = parse_hyperparameters(Hyperparameters, config.hyperparameters)
    settings, parallelism = config.execution.read(Settings), config.execution.parallelism
    is_kfac = values.opt_preconditioner == "kfac"
    if not is_kfac:
        refuse_without_effect(
            config, [field.name for field in fields(Settings)], "opt_preconditioner=kfac"
        )
    is_sharded = parallelism.weight_update == "sharded"
    is_distributed = settings.kfac_inverses == "distributed"
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
    if not is_distributed:  # then every rank has all gradients and directions, and sends none
        refuse_without_effect(config, ("kfac_gradients",), "kfac_inverses=distributed")
    if is_kfac and not values.kfac_stale and config.execution.compile == "on":
        raise UserError(
            "--set compile=on: with kfac_stale=false factors are due in every step, and only steps "
            "without any are compiled; fix: leave compile off, or set kfac_stale=true"
        )
    factor_format = _choose_factor_format(settings)
    simulated, sums = _parse_simulated(config, ranks, factor_format)
    fisher, drawn = parse_fisher(values.kfac_fisher)
    if is_kfac and fisher in ("exact", "gauss_newton"):
        try:
            refuse_many(fisher, int(config.definition.model["classes"]))
        except UseError as error:  # with those of all other settings in a plan
            raise UserError(str(error)) from error
    _, columns = find_shape(parallelism.all_reduce, ranks)
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
        symmetric=settings.kfac_symmetric == "on",
        factor_format=factor_format,
        gradient_format=settings.kfac_gradients,
        overlap=settings.kfac_overlap == "on",
        simulated_ranks=simulated,
        sums=sums,
        ranks_per_node=columns if parallelism.all_reduce.way != "flat" else 0,
        stale=values.kfac_stale,
        stale_tolerance=values.kfac_stale_tolerance,
        average_gradients=is_sharded,
        shard_update=is_sharded,
    )


def _choose_factor_format(settings: Settings) -> Format:
    """Return the format in which factors travel. Raises UserError for two at once."""
    half = settings.kfac_half_factors
    if settings.kfac_float21 == "off":
        return "float32" if half == "off" else half
    if half != "off":
        raise UserError(
            f"--set kfac_half_factors={half}: factors already travel as float21; fix: leave out "
            "kfac_float21=on, or kfac_half_factors"
        )
    return "float21"


def _parse_simulated(config: RunConfig, ranks: Ranks, factor_format: Format) -> tuple[int, Sums]:
    """Return the number of simulated ranks, 0 for none, and the form of their sums.

    Raises UserError where they would round nothing, or not as real ranks would.
    """
    model = config.definition.model
    simulated = str(model.get("kfac_simulated_ranks", "off"))
    sums = cast(Sums, model.get("kfac_sums", "float32"))
    problem = ""
    if simulated == "off":
        if sums != "float32":
            raise UserError(
                f"--set kfac_sums={sums}: it has no effect without kfac_simulated_ranks=8; fix: "
                "set kfac_simulated_ranks=8 too, or leave kfac_sums out"
            )
        return 0, sums
    if config.hyperparameters["opt_preconditioner"] != "kfac":
        problem = "without K-FAC nothing is rounded"
    elif ranks.world_size > 1:
        problem = f"this is for one rank, and there are {ranks.world_size}"
    elif config.execution.parallelism.weight_update == "sharded":
        problem = "with weight_update=sharded the formats of gradients have no effect"
    elif int(simulated) > (samples := _count_samples_at_once(config)):
        problem = f"{samples} samples at once cannot be shared among so many ranks"
    if problem:
        raise UserError(
            f"--set kfac_simulated_ranks={simulated}: {problem}; fix: leave it out, and kfac_sums"
        )
    if sums != "float32" and factor_format == "float32":
        raise UserError(
            f"--set kfac_simulated_ranks={simulated} --set kfac_sums={sums}: factors travel in "
            "float32, so their sums are not rounded; fix: set kfac_float21=on or "
            "kfac_half_factors=bfloat16 too, or leave kfac_sums out"
        )
    return int(simulated), sums


def _count_samples_at_once(config: RunConfig) -> int:
    """Return the samples of a forward pass of one rank, as far as the settings say them."""
    asked, batch = config.execution.micro_batch, config.global_batch_size
    return min(int(asked), batch) if asked.isdecimal() else batch


def parse_fisher(chosen: str) -> tuple[Fisher, int]:
    """Return the Fisher matrix and the labels drawn for each sample: 4 for ``sampled_4``."""
    if chosen in get_args(Fisher):
        return cast(Fisher, chosen), 1
    return "sampled", int(chosen.removeprefix("sampled_"))
