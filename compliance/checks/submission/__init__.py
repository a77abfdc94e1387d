"""Checks of a submission folder: layout, systems, files, manifest, waivers."""
