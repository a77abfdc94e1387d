"""Suggestions: what somebody meant who wrote nearly the right word, or that of another program."""

import pytest

from cepheid.rules import definition
from cepheid.rules.errors import did_you_mean, find_meant

KFAC = tuple(definition.load("kfac", "mini").hyperparameters)
NAMES = definition.names()
BITS = ("auto", "fp32", "bf16", "fp16")


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("learning_rate", KFAC, "opt_base_learning_rate"), ("lr", KFAC, "opt_base_learning_rate"),
        ("learningRate", KFAC, "opt_base_learning_rate"),
        ("base-lr", KFAC, "opt_base_learning_rate"), ("batchsize", KFAC, "global_batch_size"),
        ("batch-size", KFAC, "global_batch_size"),
        ("batch", (*KFAC, "micro_batch"), "global_batch_size"), ("bs", KFAC, "global_batch_size"),
        ("wd", KFAC, "opt_weight_decay"), ("optimizer", KFAC, "opt_name"),
        ("momentun", KFAC, "opt_momentum"), ("warmup", KFAC, "opt_learning_rate_warmup_epochs"),
        ("dampening", KFAC, "kfac_damping"), ("label-smoothing", KFAC, "label_smoothing"),
        ("thread", ("threads",), "threads"), ("galaxy_shap", NAMES, "galaxy_shape"),
        ("shape", NAMES, "galaxy_shape"), ("GalaxyShape", NAMES, "galaxy_shape"),
        ("resnet", NAMES, "resnet50"), ("resnet-50", NAMES, "resnet50"),
        ("maskrcnn", NAMES, "mask_rcnn"), ("chexnet", NAMES, "chest_xray"),
        ("xray", NAMES, "chest_xray"), ("video", NAMES, "video_prediction"), ("half", BITS, "fp16"),
        ("float32", BITS, "fp32"), ("bf-16", BITS, "bf16"), ("BF16", BITS, "bf16"),
        ("true", ("on", "off"), "on"), ("pytorch", ("torch", "keras"), "torch"),
        ("tensorflow", ("torch", "keras"), "keras"), ("open-division", ("closed", "open"), ""),
        ("min", ("mini", "full"), "mini"), ("small", ("mini", "full"), "mini"), ("", NAMES, ""),
        ("c", ("closed", "open"), ""), ("xyzzy", (*NAMES, *KFAC), ""),
    ],
)  # fmt: skip
def test_what_somebody_meant_is_found(word: str, known: tuple[str, ...], meant: str) -> None:
    assert find_meant(word, known) == meant
    assert did_you_mean(word, known) == (f'; did you mean "{meant}"?' if meant else "")


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_found_by_its_last_words_and_with_a_letter_too_few(name: str) -> None:
    known = tuple(definition.load(name, "mini").hyperparameters)
    for key in known:
        tails = [other for other in known if other.endswith(f"_{key.partition('_')[2]}")]
        assert find_meant(key.partition("_")[2], known) in (tails or [key]), key
        assert find_meant(key.replace("_", "-"), known) == key
        assert find_meant(key[:-1], known).startswith(key[:-1]), key
