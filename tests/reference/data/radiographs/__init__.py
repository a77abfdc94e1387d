"""Radiographs: files, drawings, areas under curves."""
