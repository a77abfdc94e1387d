"""gnmt in PyTorch: translation from English to German by a recurrent network."""

from dataclasses import dataclass

from torch import Tensor, nn

from cepheid.benchmarks.gnmt.model import GNMT, Shape, Variant
from cepheid.benchmarks.gnmt.pictures import draw
from cepheid.benchmarks.gnmt.recurrent import Form
from cepheid.reference.data.sentences.batches import LOCAL, ROUND_ROBIN, Batch, Bucketing, Pass
from cepheid.reference.optim.schedules import exponential_warmup_then_steps
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.translation.sentences import (
    Corpus,
    Translation,
    TranslationHyperparameters,
    make_workload,
    read_search,
    sum_losses,
)
from cepheid.reference.torch.workload import Network, Norms, Seat, Update, Workload
from cepheid.rules.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(TranslationHyperparameters):
    """The hyperparameters of gnmt."""

    opt_learning_rate_warmup_samples: int
    opt_learning_rate_remain_samples: int
    opt_learning_rate_decay_interval_samples: int
    opt_learning_rate_decay_factor: float
    opt_learning_rate_decay_steps: int
    opt_gradient_clip_norm: float
    model_variant: Variant


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The execution settings that only gnmt has."""

    recurrent: Form
    bucketing: str
    window: int
    input_hosts: int


@dataclass(frozen=True, kw_only=True)
class Sentences(Translation):
    """The facts of gnmt; ``form`` is how its LSTMs are computed."""

    values: Hyperparameters
    sizes: Shape
    form: Form


def read_shape(config: RunConfig) -> Sentences:
    """Return the facts of a configuration."""
    values = config.read(Hyperparameters)
    facts = config.definition.model
    sizes = {key: facts[key] for key in ("vocabulary", "width", "layers", "dropout")}
    return Sentences(
        config=config,
        values=values,
        sizes=Shape(**sizes, variant=values.model_variant),
        search=read_search(config),
        bucketing=read_bucketing(config),
        form=config.execution.read(Settings).recurrent,
    )


def read_bucketing(config: RunConfig) -> Bucketing:
    """Return how batches get sentences of like lengths. Raises UserError for a contradiction."""
    settings = config.execution.read(Settings)
    way, hosts = settings.bucketing, settings.input_hosts
    if way == LOCAL and hosts > config.global_batch_size:
        raise UserError(
            f"--set input_hosts={hosts}: with bucketing={way} each host draws a part of the "
            f"{config.global_batch_size} sentences of a global batch; fix: choose fewer hosts"
        )
    if hosts > 1 and way not in (LOCAL, ROUND_ROBIN):
        raise UserError(
            f"--set input_hosts={hosts}: with bucketing={way} there is one order for all; fix: "
            f"leave it out, or set bucketing to {LOCAL} or {ROUND_ROBIN}"
        )
    return Bucketing(way, settings.window, hosts)


def make_network(shape: Sentences, norms: Norms) -> nn.Module:
    """Return the network of the definition."""
    network = GNMT(shape.sizes)
    network.use_form(shape.form)
    return network


def prepare_update(shape: Sentences, update: Update) -> None:
    """Set the learning rate and clip the gradients."""
    for group in update.groups:
        group["lr"] = compute_rate(shape.values, update.samples)
    update.clip(update.groups, shape.values.opt_gradient_clip_norm)


def compute_rate(values: Hyperparameters, samples: int) -> float:
    """Return the learning rate of the step that completes ``samples``."""
    return exponential_warmup_then_steps(
        samples,
        peak=values.opt_base_learning_rate,
        warmup_samples=values.opt_learning_rate_warmup_samples,
        remain_samples=values.opt_learning_rate_remain_samples,
        interval_samples=values.opt_learning_rate_decay_interval_samples,
        factor=values.opt_learning_rate_decay_factor,
        decays=values.opt_learning_rate_decay_steps,
    )


def open_data(shape: Sentences, seat: Seat) -> Corpus:
    """Map the sentences; a pass weighs as much as its sentences in the mean loss."""

    def weigh(block: Pass, batch: Batch) -> float:
        return len(block.source) / shape.config.global_batch_size

    return Corpus(shape, seat, weigh)


def compute_loss(shape: Sentences, network: Network, source: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of sentences, (n, places) both: the sum over tokens, smoothed."""
    logits = network(source, target)
    return sum_losses(shape, logits.float(), target) / len(target)


WORKLOAD: Workload[Sentences] = make_workload(
    read_shape=read_shape,
    make_network=make_network,
    compute_loss=compute_loss,
    open_data=open_data,
    prepare_update=prepare_update,
    pictures=draw,
)
