"""Updates of rules/from_scratch.md: rates, decay, norms and optimizers are the reference's."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cepheid.reference.torch.workload import Update
from tests.rules.from_scratch.test_networks import Norms, open_reference
from tests.rules.test_from_scratch import page

CASES = {
    **dict.fromkeys(("galaxy_shape", "galaxy_bnn", "galaxy_vae", "resnet50", "kfac", "chest_xray")),
    **dict.fromkeys(("ssd", "mask_rcnn", "transformer", "gnmt", "video_prediction")),
    "galaxy_shape constant": ["opt_learning_rate_decay_samples=0"],
    "resnet50 lars": ["opt_name=lars", "opt_learning_rate_for_batch=32"],
    "kfac unscaled": [
        *("opt_momentum_form=unscaled", "opt_momentum_follows_rate=true"),
        *("opt_learning_rate_warmup_epochs=2", "opt_learning_rate_decay_poly_power=3"),
    ],
    "chest_xray decayed": ["opt_weight_decay=1e-5"],
    "mask_rcnn stretched": ["opt_learning_rate_drop_stretch=3"],
    "ssd slow": ["opt_learning_rate_warmup_factor=1"],
    "transformer cold": ["opt_learning_rate_warmup_samples=0"],
    "gnmt constant": ["opt_learning_rate_decay_interval_samples=0"],
}


def find_rate(name: str, v: Mapping[str, Any], s: int, epoch: int, prefix: str = "opt_") -> float:
    """Return the rate of the step that completes s samples, by the table of the page."""
    b, batch = v[f"{prefix}base_learning_rate"], v["global_batch_size"]
    w, d = (v.get(f"opt_learning_rate_{each}_samples", 0) for each in ("warmup", "decay"))
    steps = batch * v.get("opt_learning_rate_warmup_steps", 0)
    rise, end = (v.get(f"opt_learning_rate_{each}_epochs", 0) for each in ("warmup", "decay"))
    last, power = v.get("opt_end_learning_rate"), v.get("opt_learning_rate_decay_poly_power")
    if name.startswith("galaxy"):
        found = page.cosine_rate(s, b, last, w, d)
    elif name == "chest_xray":
        found = page.cosine_rate(s, b, 0.0, steps, d)
    elif name == "resnet50":
        n = v["opt_learning_rate_for_batch"]
        peak, start = (b * batch / n, b) if n else (b, 0.0)
        found = page.polynomial_rate(s, peak, last, start, rise * epoch, end * epoch, power)
    elif name == "kfac":
        stays = v["opt_learning_rate_decay_start_epochs"] * epoch
        found = page.polynomial_rate(s, b, last, b, stays, end * epoch, power)
        found *= min(1, s / (rise * epoch)) if rise else 1
    elif name == "transformer":
        found = page.inverse_square_root_rate(s, b, w)
    elif name == "gnmt":
        names = ("remain_samples", "decay_interval_samples", "decay_factor", "decay_steps")
        found = page.stepwise_rate(s, b, w, *(v[f"opt_learning_rate_{each}"] for each in names))
    elif name == "video_prediction":
        length = v["growth_fading_samples"] + v["growth_stable_samples"]
        b *= v["opt_learning_rate_growth_factor"] ** min(1, (s - batch) // length)
        found = page.cosine_rate(s, b, 0.0, 0, d)
    else:
        stretch = 1 + v["opt_learning_rate_drop_stretch"] / 10
        drops = [v[f"opt_learning_rate_{each}_drop_samples"] for each in ("first", "second")]
        factor = v["opt_learning_rate_warmup_factor"]
        found = page.dropping_rate(s, b, steps, factor, [stretch * drop for drop in drops])
    return float(found)


def list_groups(name: str, v: Mapping[str, Any], net: nn.Module) -> Iterator[Any]:
    """Yield names, share of the rate, decay, prefix of the hyperparameters and whether adapted."""
    parts: dict[Any, list[str]] = {}
    decay, lars = v.get("opt_weight_decay", 0.0), v["opt_name"] == "lars"
    last = v.get("opt_last_layer_rate_factor")
    for key, value in net.named_parameters():
        rule: Any = 1.0, decay, "opt_", lars
        if name in ("resnet50", "kfac") and value.dim() == 1:  # biases and norms
            rule = 1.0, 0.0, "opt_", False
        elif name == "mask_rcnn" and key.endswith("bias"):  # shifts of norms, too
            rule = 2.0, 0.0, "opt_", False
        elif name == "galaxy_vae" and key.startswith("flow"):
            rule = 1.0, 0.0, "opt_flow_", False
        elif name == "chest_xray" and key.startswith("fc"):
            rule = last, decay, "opt_", False
        parts.setdefault(rule, []).append(key)
    yield from ((keys, *rule) for rule, keys in parts.items())


class Updates:
    """The optimizer of a benchmark, on its own copy of the weights."""

    def __init__(self, name: str, v: Mapping[str, Any], net: nn.Module, epoch: int) -> None:
        self.name, self.v, self.epoch, self.step = name, v, epoch, 0
        self.groups = list(list_groups(name, v, net))
        self.weights = {key: value.detach().clone() for key, value in net.named_parameters()}
        self.state = {
            key: (torch.zeros_like(p), torch.zeros_like(p)) for key, p in self.weights.items()
        }

    def update(self, gradients: Mapping[str, Tensor], samples: int) -> None:
        self.step += 1
        for keys, share, decay, prefix, is_adapted in self.groups:
            norm = torch.stack([gradients[key].norm() for key in keys]).norm()
            limit = self.v.get(f"{prefix}gradient_clip_norm", torch.inf)
            rate = share * find_rate(self.name, self.v, samples, self.epoch, prefix)
            for key in keys:
                g = gradients[key] * min(1.0, float(limit / norm))
                self.change(key, g, decay, rate, is_adapted)

    def change(self, key: str, g: Tensor, decay: float, rate: float, is_adapted: bool) -> None:
        p, (m, second), v = self.weights[key], self.state[key], self.v
        ratio = 1.0
        if is_adapted and p.norm() > 0 and g.norm() > 0:
            ratio = v["lars_trust_coefficient"] * p.norm() / (g.norm() + decay * p.norm())
        g = g + decay * p
        if v["opt_name"] == "adam":
            b1, b2 = v["opt_adam_beta_1"], v["opt_adam_beta_2"]
            m.copy_(b1 * m + (1 - b1) * g)
            second.copy_(b2 * second + (1 - b2) * g**2)
            root = (second / (1 - b2**self.step)).sqrt() + v["opt_adam_epsilon"]
            p -= rate * m / (1 - b1**self.step) / root
            return
        momentum = v["opt_momentum"]
        if v.get("opt_momentum_follows_rate"):
            momentum *= min(1, rate / v["opt_base_learning_rate"])
        inner, outer = (rate * ratio, 1.0), (1.0, rate * ratio)
        before, after = inner if v.get("opt_momentum_form") == "unscaled" else outer
        m.copy_(momentum * m + before * g)
        p -= after * m


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_the_reference(case: str) -> None:
    name = case.split()[0]
    workload, shape, _ = open_reference(name, CASES[case] or [])
    net = workload.make_network(shape, Norms(name)).double()
    recipe = workload.make_optimizer(shape, net)
    optimizer = recipe.kind(recipe.groups, **recipe.options)
    config = shape.config
    batch = config.global_batch_size
    own = Updates(name, config.hyperparameters, net, config.definition.train_samples)

    def clip(groups: Any, limit: float) -> None:
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], limit)

    for samples in (batch, 40 * batch, 7_040, 14_016, 31_008, 10**6):
        for parameter in net.parameters():
            parameter.grad = 3 * torch.randn_like(parameter)
        own.update({key: p.grad.clone() for key, p in net.named_parameters()}, samples)
        workload.prepare_update(shape, Update(samples, optimizer.param_groups, clip))
        optimizer.step()
    for key, value in net.named_parameters():
        assert torch.allclose(own.weights[key], value, rtol=1e-6, atol=1e-7), key
