"""Spatial partitioning: several ranks share each image, and exchange rows at the borders."""
