"""The network of galaxy_shape at mini scale in TensorFlow's own operations: no Keras, no layers.

After benchmarks/galaxy_shape/README.md and benchmark.yaml: batch normalisation of the input, four
blocks of two 3 × 3 convolutions (the second of stride 2), each with a slope per position and
channel, and a dense head of two means and the three entries of a lower triangular matrix.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

BANDS, PIXELS, FILTERS, OUTPUTS = 6, 64, (16, 32, 64, 128), 5
NORM_EPSILON, NORM_KEEPS = 1e-3, 0.99
SMALLEST_SCALE = 1e-5


class Network:
    """Weights, all float32; convolutions and slopes are computed in bfloat16."""

    def __init__(self, seed: int) -> None:
        self._seeds = tf.random.Generator.from_seed(seed)
        self.gamma = tf.Variable(tf.ones(BANDS))
        self.beta = tf.Variable(tf.zeros(BANDS))
        self.mean = tf.Variable(tf.zeros(BANDS), trainable=False)
        self.variance = tf.Variable(tf.ones(BANDS), trainable=False)
        self.convolutions = []
        channels, pixels = BANDS, PIXELS
        for width in FILTERS:
            for stride in (1, 2):
                pixels //= stride
                kernel = self._uniform((3, 3, channels, width), 9 * channels, 9 * width)
                bias = tf.Variable(tf.zeros(width))
                slope = tf.Variable(tf.zeros((pixels, pixels, width)))
                self.convolutions.append((stride, kernel, bias, slope))
                channels = width
        inputs = pixels * pixels * channels
        self.head = self._uniform((inputs, OUTPUTS), inputs, OUTPUTS)
        self.head_bias = tf.Variable(tf.zeros(OUTPUTS))

    @property
    def weights(self) -> list[tf.Variable]:
        """All that is trained."""
        found = [self.gamma, self.beta]
        for _, kernel, bias, slope in self.convolutions:
            found += [kernel, bias, slope]
        return [*found, self.head, self.head_bias]

    @property
    def statistics(self) -> list[tf.Variable]:
        """What the normalisation keeps for evaluation."""
        return [self.mean, self.variance]

    def __call__(self, stamps: tf.Tensor, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Stamps (n, 6, 64, 64) in units of the sky noise, float16, to means (n, 2) and entries
        (n, 3) of the lower triangular matrix L, row by row, with a positive diagonal."""
        images = tf.transpose(tf.cast(stamps, tf.float32), (0, 2, 3, 1))
        images = tf.cast(self._normalised(asinh(images / 3), training), tf.bfloat16)
        for stride, kernel, bias, slope in self.convolutions:
            images = tf.nn.conv2d(images, tf.cast(kernel, tf.bfloat16), stride, "SAME")
            images += tf.cast(bias, tf.bfloat16)
            images = tf.nn.relu(images) - tf.cast(slope, tf.bfloat16) * tf.nn.relu(-images)
        features = tf.reshape(images, (-1, self.head.shape[0]))
        head = tf.cast(features @ tf.cast(self.head, tf.bfloat16), tf.float32) + self.head_bias
        below = head[:, 3]
        first, second = (tf.nn.softplus(head[:, entry]) + SMALLEST_SCALE for entry in (2, 4))
        return head[:, :2], tf.stack([first, below, second], axis=1)

    def _normalised(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = tf.nn.moments(images, (0, 1, 2))
            for kept, new in zip(self.statistics, (mean, variance), strict=True):
                kept.assign(NORM_KEEPS * kept + (1 - NORM_KEEPS) * new)
        return tf.nn.batch_normalization(
            images, mean, variance, self.beta, self.gamma, NORM_EPSILON
        )

    def _uniform(self, shape: Sequence[int], fan_in: int, fan_out: int) -> tf.Variable:
        """As Glorot and Bengio (2010) start."""
        bound = math.sqrt(6 / (fan_in + fan_out))
        return tf.Variable(self._seeds.uniform(shape, -bound, bound))


def asinh(values: tf.Tensor) -> tf.Tensor:
    """By vector instructions; tf.asinh is slow on CPUs."""
    size = tf.abs(values)
    squared = tf.square(size)
    return tf.sign(values) * tf.math.log1p(size + squared / (1 + tf.sqrt(1 + squared)))


def mean_loss(mean: tf.Tensor, scale: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean of −log N(labels; mean, L·Lᵀ) in nats."""
    first = (labels[:, 0] - mean[:, 0]) / scale[:, 0]
    second = (labels[:, 1] - mean[:, 1] - scale[:, 1] * first) / scale[:, 2]
    squares = tf.square(first) + tf.square(second)
    return tf.reduce_mean(
        squares / 2 + tf.math.log(scale[:, 0]) + tf.math.log(scale[:, 2]) + math.log(2 * math.pi)
    )


class Adam:
    """Kingma and Ba (2015), algorithm 1, of gradients whose global norm is clipped."""

    def __init__(self, weights: list[tf.Variable], beta_1: float, beta_2: float, epsilon: float):
        self.weights, self.betas, self.epsilon = weights, (beta_1, beta_2), epsilon
        self.first = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self.second = [tf.Variable(tf.zeros_like(weight)) for weight in weights]
        self.steps = tf.Variable(0.0)

    @property
    def state(self) -> list[tf.Variable]:
        """All that a step changes but the weights."""
        return [*self.first, *self.second, self.steps]

    def step(self, gradients: list[tf.Tensor], clip_norm: float, rate: tf.Tensor) -> None:
        """One update at a learning rate."""
        gradients, _ = tf.clip_by_global_norm(gradients, clip_norm)
        self.steps.assign_add(1.0)
        beta_1, beta_2 = self.betas
        unbias_1, unbias_2 = (1 - tf.pow(beta, self.steps) for beta in self.betas)
        for weight, gradient, first, second in zip(
            self.weights, gradients, self.first, self.second, strict=True
        ):
            first.assign(beta_1 * first + (1 - beta_1) * gradient)
            second.assign(beta_2 * second + (1 - beta_2) * tf.square(gradient))
            size = tf.sqrt(second / unbias_2) + self.epsilon
            weight.assign_sub(rate * first / unbias_1 / size)
