"""ImageNet classification with K-FAC, a second-order optimizer."""
