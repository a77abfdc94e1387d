"""The time to train on machines that are not here: a cost model, and how well it does."""
