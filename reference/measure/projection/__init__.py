"""A cost model of training on more devices, and how well it predicts what is published."""
