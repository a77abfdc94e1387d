"""The layouts in which people have datasets, and how they become the one that is distributed."""
