"""One study for each question that a measurement answers."""
