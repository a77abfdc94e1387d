"""ImageNet classification with ResNet-50."""
