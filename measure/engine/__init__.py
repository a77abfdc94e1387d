"""What studies share: turns, processes of their own, trainings, recorded points, drawings."""
