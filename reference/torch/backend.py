"""How runs on torch begin and how they are forgotten; ``keras_backend`` has the same for Keras."""

from reference.torch.compilation import free_earlier_tasks as free_earlier_tasks
from reference.torch.distributed import start_ranks as start_ranks

WEIGHTS_SUFFIX = ".pt"
