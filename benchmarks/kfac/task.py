"""kfac in PyTorch: resnet50 with a preconditioner before its optimizer, and mixup."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.kfac.pictures import erased
from benchmarks.resnet50.model import is_exempt
from benchmarks.resnet50.task import ResNet50
from reference.optim.kfac import KFAC, Options
from reference.optim.kfac.options import Rescaling
from reference.optim.kfac.staleness import Interval
from reference.optim.lars import FORMS, Lars, MomentumForm
from reference.optim.schedules import DECAYS, Schedule, linear_warmup
from reference.run.config import RunConfig
from reference.run.report import Table, Value
from reference.run.seeding import generator
from reference.torch.distributed import TorchRanks, detect_lost_rank
from reference.torch.parallel import clear_optimizer_state
from rules.errors import UserError

PLAIN_TURNS, PLAIN_UPDATES = 10, 5
PLAIN_SECONDS = 60  # about what all turns may take, on a machine for which one update is long
KNOWN: Mapping[str, tuple[object, ...]] = {
    "model_variant": ("v1_5", "d"),
    "opt_preconditioner": ("kfac", "none"),
    "opt_momentum_form": FORMS,
    "opt_learning_rate_decay_schedule": tuple(DECAYS),
    "kfac_rescaling": ("none", "kl_clip", "norm"),
    "kfac_inverse": ("cholesky", "eigen"),
}
"""What this implementation can do, in the open division too."""


@dataclass(frozen=True)
class HeldSchedule(Schedule):
    """One that stays at its peak for ``warmup_samples`` before it decays, and rises from 0 within
    the first ``rise_samples``."""

    rise_samples: float = 0

    def rate(self, samples: int) -> float:
        """The learning rate of the step that completes ``samples`` training samples."""
        return super().rate(samples) * linear_warmup(samples, self.rise_samples)


def create(config: RunConfig, ranks: TorchRanks) -> "PreconditionedResNet50":
    """The task that the timed loop drives."""
    return PreconditionedResNet50(config, ranks)


class PreconditionedResNet50(ResNet50):
    """The class of an image, learnt by SGD on gradients that K-FAC preconditions; or on plain
    ones, with ``opt_preconditioner=none``, all else equal.

    With ``weight_update=sharded`` this is Algorithm 1 of Ueno et al. 2020: gradients go to the
    owners of their layers with the factors, owners update, weights go round.
    """

    known = KNOWN

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        values, own = config.hyperparameters, config.execution.own
        self._own = own
        self.is_preconditioned = values["opt_preconditioner"] == "kfac"
        self.is_sharded = self.is_preconditioned and own["weight_update"] == "sharded"
        if self.is_preconditioned and config.execution.compile != "off":
            raise UserError(
                "--set compile=on: K-FAC watches the layers of a model and cannot do so in a "
                "compiled one; leave it off, or set opt_preconditioner=none in the open division"
            )
        if self.is_sharded and config.execution.precision == "fp16":
            raise UserError(
                "--set precision=fp16: with weight_update=sharded each rank would find overflows "
                "in its own gradients alone; use bf16, or leave weight_update replicated"
            )
        self.options = options_of(config, ranks)
        self.mixed: tuple[Tensor, Tensor] | None = None  # the batch before, as it was trained on
        self.kfac: KFAC | None = None

    def make_schedule(self) -> HeldSchedule:
        """Warm-up, a constant rate, decay; all given in epochs."""
        return schedule_of(self.config)

    def build(self) -> int:
        """As ever, with K-FAC on the model."""
        count = super().build()
        self.kfac = self.make_preconditioner()
        return count

    def make_optimizer(self) -> torch.optim.Optimizer:
        """SGD with either form of momentum; biases and batch norms are not decayed."""
        values = self.config.hyperparameters
        weights = [p for p in self.model.parameters() if not is_exempt(p)]
        exempt = [p for p in self.model.parameters() if is_exempt(p)]
        decay = float(values["opt_weight_decay"])
        groups: list[dict[str, Any]] = [
            {"params": weights, "weight_decay": decay},
            {"params": exempt, "weight_decay": 0.0},
        ]
        options: dict[str, Any] = {
            "lr": self.schedule.peak,
            "momentum": float(values["opt_momentum"]),
            "form": cast(MomentumForm, values["opt_momentum_form"]),
            "adaptive": False,
        }
        if not self.is_sharded:
            return self.make_parallel_optimizer(Lars, groups, **options)
        self.parallel = self.model  # K-FAC averages gradients and shares the update by itself
        return Lars(groups, **options)

    def make_preconditioner(self) -> KFAC | None:
        """K-FAC on the model, as if it had taken no step."""
        if not self.is_preconditioned:
            return None
        is_half = self.precision is torch.bfloat16 and self._own["kfac_products"] == "as_model"
        options = replace(self.options, bfloat16_products=is_half)
        return KFAC(self.model, options, self._communication, lambda name: self.phase(name))

    @contextmanager
    def _communication(self) -> Iterator[None]:
        with self.phase("communication"), detect_lost_rank():
            yield

    def warm_up(self) -> None:
        """As ever, with a step of K-FAC, which knows nothing of it afterwards. How to compute is
        settled without: most steps of a run leave most factors alone."""
        if self.kfac is None:
            super().warm_up()
            return
        self.kfac.remove()
        super().warm_up()
        self.kfac = self.make_preconditioner()
        assert self.kfac is not None
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        self._step_on_noise(self.execution)
        self.kfac.step(self.schedule.peak)
        self.kfac.remove()
        self.kfac = self.make_preconditioner()
        self.optimizer.zero_grad()
        clear_optimizer_state(self.optimizer)
        self.model.load_state_dict(before)

    def measure_afterwards(self) -> Mapping[str, float]:
        """What an update takes without K-FAC, on the pictures that would come next."""
        if self.kfac is None:
            return {}
        kfac, self.kfac = self.kfac, None
        try:
            with kfac.paused(), self._put_back():
                return {"plain_update_ms": statistics.median(self._plain_updates_ms())}
        finally:
            self.kfac = kfac

    def _plain_updates_ms(self) -> Iterator[float]:
        """Of one update each, the mean of some that follow each other as in the run."""
        self.model.train()
        first_ms = self._plain_update_ms(1)  # makes what the others find made
        turns: int = self.ranks.broadcast(int(1000 * PLAIN_SECONDS / (PLAIN_UPDATES * first_ms)))
        for _ in range(max(1, min(PLAIN_TURNS, turns))):
            yield self._plain_update_ms(PLAIN_UPDATES)

    def _plain_update_ms(self, updates: int) -> float:
        self.synchronize()
        started = time.perf_counter()
        for _ in range(updates):
            self.loss_and_gradients()
            self.share_gradients()
            if self.is_sharded:  # which is K-FAC's own work
                self.ranks.average_gradients(self.model.parameters())
            self.apply_gradients()
        self.synchronize()
        return 1000 * (time.perf_counter() - started) / updates

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """Whatever is trained in it, the state is as before afterwards."""
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        before, known = [tensor.clone() for tensor in tensors], set(self.optimizer.state)
        scale, samples, mixed = self.scaler.state_dict(), self.samples, self.mixed
        rates = [(group["lr"], group["momentum"]) for group in self.optimizer.param_groups]
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(tensors, before)
            for parameter in set(self.optimizer.state) - known:  # of layers that others update
                del self.optimizer.state[parameter]
            self.samples, self.mixed = samples, mixed
            if scale:
                self.scaler.load_state_dict(scale)
            for group, (rate, momentum) in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"], group["momentum"] = rate, momentum

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """How stale the factors were, and who inverts what."""
        on_progress(self.samples, self.samples)  # all was counted while it was trained
        return report_of(self.kfac) if self.kfac is not None else ()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Images, (share, pixels, pixels, 3), and labels: as resnet50 has them, or both mixed,
        float32, and then labels are probabilities, (share, classes)."""
        images, labels = super().next_batch()
        values, seed = self.config.hyperparameters, self.config.seed
        probability = float(values["random_erasing_probability"])
        alpha = float(values["mixup_alpha"])
        if probability:
            noise = generator(seed, "erasing", self.samples)
            first = self.ranks.rank * self.batch_per_rank
            images = erased(images, probability, noise, first, self.config.global_batch_size)
        if not alpha:
            return images, labels
        share = float(generator(seed, "mixup", self.samples).beta(alpha, alpha))
        one_hot = functional.one_hot(labels, self.classes)
        self.mixed = running_mixup((images.float(), one_hot.float()), self.mixed, share)
        return self.mixed

    def apply_gradients(self) -> None:
        """Precondition, step at the rate of the samples trained after it, normalise weights."""
        self.samples += self.config.global_batch_size
        rate = self.schedule.rate(self.samples)
        self._set_rate(rate)
        if self.kfac is not None:
            self.scaler.unscale_(self.optimizer)
            self.kfac.step(rate, self.scaler.get_scale())
        with detect_lost_rank():
            self.scaler.step(self.optimizer)
        if self.kfac is not None and self.is_sharded:
            self.kfac.share_weights()
        self.scaler.update()
        if self.config.hyperparameters["opt_weight_normalisation"]:
            normalise(self.model)
        self.optimizer.zero_grad()

    def _set_rate(self, rate: float) -> None:
        values = self.config.hyperparameters
        momentum = float(values["opt_momentum"])
        if values["opt_momentum_follows_rate"]:
            momentum *= min(1.0, rate / self.schedule.peak)
        for group in self.optimizer.param_groups:
            group["lr"], group["momentum"] = rate, momentum

    def share_gradients(self) -> None:
        """For a ledger only; owners average what is theirs where the update is sharded."""
        if not self.is_sharded:
            super().share_gradients()

    def state(self) -> dict[str, Any]:
        """As ever, with the factors and the mixed batch; of several ranks no one has these, and
        they are left out."""
        state = super().state()
        if self.ranks.world_size > 1:
            return {**state, **({"optimizer": {}} if self.is_sharded else {})}
        kfac = self.kfac.state_dict() if self.kfac is not None else {}
        return {**state, "kfac": kfac, "mixed": list(self.mixed or ())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        if self.kfac is not None and state.get("kfac"):
            self.kfac.load_state_dict(state["kfac"])
        if mixed := state.get("mixed"):
            images, labels = mixed
            self.mixed = self._on_device(images), self._on_device(labels)


def options_of(config: RunConfig, ranks: TorchRanks) -> Options:
    """What the configuration asks of K-FAC. Raises UserError where that cannot be."""
    values, own = config.hyperparameters, config.execution.own
    is_sharded = own["weight_update"] == "sharded"
    is_distributed = own["kfac_inverses"] == "distributed"
    if is_sharded and not is_distributed:
        raise UserError(
            "--set weight_update=sharded: with kfac_inverses=everywhere no rank owns a layer; set "
            "kfac_inverses=distributed, or leave weight_update replicated"
        )
    return Options(
        damping=float(values["kfac_damping"]),
        average_decay=float(values["kfac_average_decay"]),
        batch_norm_damping=float(values["kfac_batch_norm_damping"]),
        rescaling=cast(Rescaling, values["kfac_rescaling"]),
        kl_clip=float(values["kfac_kl_clip"]),
        inverse="eigen" if values["kfac_inverse"] == "eigen" else "cholesky",
        distribute_inverse=is_distributed,
        symmetric=own["kfac_symmetric"] == "on",
        float21=own["kfac_float21"] == "on",
        overlap=own["kfac_overlap"] == "on",
        ranks_per_node=ranks.ranks_per_node if own["all_reduce"] == "two_level" else 0,
        stale=bool(values["kfac_stale"]),
        stale_tolerance=float(values["kfac_stale_tolerance"]),
        average_gradients=is_sharded,
        shard_update=is_sharded,
    )


def report_of(kfac: KFAC) -> tuple[Table, Table]:
    """Refreshes and intervals of each kind of factor, and each rank's share of the inverses."""
    kinds = {"A": "A, of inputs", "B": "B, of gradients", "F": "of batch norms"}
    by_kind: dict[str, list[Interval]] = {kind: [] for kind in kinds}
    for name, interval in kfac.intervals.items():
        by_kind[name[-1]].append(interval)
    staleness: tuple[Mapping[str, Value], ...] = tuple(
        {
            "factors": kinds[kind],
            "number": len(intervals),
            "refreshes of each, mean": statistics.mean(each.refreshes for each in intervals),
            "fewest": min(each.refreshes for each in intervals),
            "most": max(each.refreshes for each in intervals),
            "last interval, median": statistics.median(each.steps for each in intervals),
            "longest": max(each.steps for each in intervals),
        }
        for kind, intervals in by_kind.items()
        if intervals
    )
    owners = kfac.owners
    total = sum(owners.cost_by_rank) or 1.0
    balance: tuple[Mapping[str, Value], ...] = tuple(
        {"rank": rank, "layers": owners.of_layer.count(rank), "share": round(cost / total, 4)}
        for rank, cost in enumerate(owners.cost_by_rank)
    )
    return (
        Table(
            "Staleness",
            staleness,
            f"in {kfac.curvature.steps:,} updates; {kfac.refreshed_share:.1%} of all refreshes",
        ),
        Table("Inverses", balance, "by the cubes of the factors' sizes"),
    )


def schedule_of(config: RunConfig) -> HeldSchedule:
    """The rate rises for the warm-up, stays, and decays from one epoch to another."""
    values = config.hyperparameters
    epoch = config.definition.train_samples
    peak = float(values["opt_base_learning_rate"])
    return HeldSchedule(
        peak=peak,
        start=peak,
        end=float(values["opt_end_learning_rate"]),
        warmup_samples=float(values["opt_learning_rate_decay_start_epochs"]) * epoch,
        decay_samples=float(values["opt_learning_rate_decay_epochs"]) * epoch,
        decay=str(values["opt_learning_rate_decay_schedule"]),
        power=float(values["opt_learning_rate_decay_poly_power"]),
        rise_samples=float(values["opt_learning_rate_warmup_epochs"]) * epoch,
    )


def running_mixup(
    batch: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor] | None, share: float
) -> tuple[Tensor, Tensor]:
    """Images and labels of ``batch``, with ``share`` of them, mixed with what was trained on one
    step before (Osawa et al. 2019, arXiv:1811.12019, section 6.1: "running mixup")."""
    if before is None:
        return batch
    images, labels = (old.lerp(new, share) for new, old in zip(batch, before, strict=True))
    return images, labels


@torch.no_grad()
def normalise(model: nn.Module) -> None:
    """Rescale the weights of each convolution and linear layer to the norm √(2 · outputs) (Osawa
    et al. 2020, arXiv:2002.06015, as the facts about chainerkfac have it)."""
    weights: list[Tensor] = [p for p in model.parameters() if not is_exempt(p)]
    norms = torch.stack(list(torch._foreach_norm(weights)))
    wanted = torch.tensor([(2.0 * len(weight)) ** 0.5 for weight in weights], device=norms.device)
    for weight, factor in zip(weights, (wanted / (norms + 1e-9)).unbind(), strict=True):
        weight.mul_(factor)
