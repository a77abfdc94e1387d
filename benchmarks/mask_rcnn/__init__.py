"""Object detection with SSD: COCO in full, simulated scenes of the sky at mini scale."""
