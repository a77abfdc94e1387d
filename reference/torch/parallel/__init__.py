"""Several ranks on one model: gradients and updates that they share, meshes, parts of a model."""
