"""Run benchmarks in Keras 3 on TensorFlow or JAX."""
