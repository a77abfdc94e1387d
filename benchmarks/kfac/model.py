"""The network is that of resnet50: ResNet-D at full scale, as the paper has it."""

from benchmarks.resnet50.model import ResNet

__all__ = ["ResNet"]
