"""How the reference implementations run."""
