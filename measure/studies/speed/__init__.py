"""How fast a step, the harness and the input are, each against simpler code."""
