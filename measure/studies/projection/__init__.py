"""The time to train on machines that are not here."""
