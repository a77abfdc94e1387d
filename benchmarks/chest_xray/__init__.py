"""Fourteen findings in radiographs of the chest, by a network that was trained on other images."""
