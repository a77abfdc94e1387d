"""Run benchmarks in Keras 3 on TensorFlow, JAX or PyTorch."""
