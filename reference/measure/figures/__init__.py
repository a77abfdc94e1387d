"""The figures of measurements, drawn with matplotlib (the extra site)."""
