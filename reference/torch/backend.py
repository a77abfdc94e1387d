"""How runs on torch begin and how they are forgotten; ``keras_backend`` has the same for Keras."""

from reference.torch.compilation import forget_earlier_tasks as forget_earlier_tasks
from reference.torch.distributed import started as started

WEIGHTS_SUFFIX = ".pt"
