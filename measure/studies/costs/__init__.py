"""What each step of an update costs: the parts, ladders, and the figure."""
