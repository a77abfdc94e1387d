"""The published constants of each benchmark hold in the closed division, and no others."""

import pytest

from cepheid.reference.run.config import configure
from cepheid.rules import definition
from cepheid.rules.errors import UserError

REFUSED = {
    "chest_xray full": "model_backbone=resnet18 opt_name=sgd data_augmentation=none "
    "opt_weight_decay=0.1",
    "gnmt full": "label_smoothing=0.0 opt_gradient_clip_norm=1.0 model_variant=input_feeding "
    "recurrent=plain window=3",
    "kfac mini": "opt_preconditioner=none model_variant=d kfac_inverse=eigen kfac_rescaling=norm "
    "kfac_fisher=sampled_4",
    "resnet50 full": "opt_momentum=0.929 opt_momentum_form=unscaled opt_name=adam model_variant=d "
    "opt_learning_rate_decay_schedule=cosine opt_collapse_epoch=30 eval_offset_epochs=4 "
    "opt_end_learning_rate=0.0",
    "ssd full": "opt_momentum=0.95 opt_name=lars opt_learning_rate_first_drop_samples=1 "
    "opt_learning_rate_drop_stretch=11 max_samples=7 data_augmentation=none",
    "transformer full": "label_smoothing=0.0 opt_name=sgd global_batch_size=4 pass_tokens=7",
}
CASES = [(key, override) for key, overrides in REFUSED.items() for override in overrides.split()]


@pytest.mark.parametrize(("benchmark", "override"), CASES)
def test_closed_refuses_other_than_the_published_settings(benchmark: str, override: str) -> None:
    name, scale = benchmark.split()
    with pytest.raises(UserError, match=override.partition("=")[0]):
        configure(definition.load(name, scale), overrides=[override])
    if name == "kfac":  # the only one whose own code has all of them
        configure(definition.load(name, scale), division="open", overrides=[override])
