"""Object detection on torch: boxes, their matching, losses and the suppression of duplicates."""
