"""`cepheid audit`: choose a logged run, repeat it, compare the two, say what that proves."""
