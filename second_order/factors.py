"""The Kronecker factors of one batch, as sums over its samples.

For a layer with inputs a and gradients g of the loss with respect to its outputs, A = E[a aᵀ] and
B = E[g gᵀ] (Ueno et al. 2020, equations 10 and 11). Where a layer is applied at many positions of a
sample (convolutions, tokens), A is the mean over positions and B the sum (Grosse & Martens 2016,
arXiv:1602.01407, section 3, with the same product). Inputs of layers with a bias end in a 1.

The columns of a convolution's inputs are ordered (row of the kernel, column of the kernel, channel)
here. They are materialised only where there are few channels, some samples at a time. Small images
need the products of their pixels alone; for large ones sums of products of shifted images are what
the weight gradient of a convolution computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

FEW_CHANNELS = 8  # 3 of 7 by 7 pixels: 14 ms unfolded, 22 by shifts (one core)
UNFOLDED_AT_ONCE = 2**21  # values
WIDE_ROWS = 512  # from which on parts pay


@dataclass(frozen=True)
class Window:
    """How a convolution moves over its images; pairs are (vertical, horizontal)."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom

    def count_outputs(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of the output for unpadded images."""
        left, right, top, bottom = self.padding
        spans = [self.dilation[axis] * (self.kernel[axis] - 1) + 1 for axis in (0, 1)]
        return (
            (height + top + bottom - spans[0]) // self.stride[0] + 1,
            (width + left + right - spans[1]) // self.stride[1] + 1,
        )


def make_window(module: nn.Conv2d) -> Window:
    """Return the window of a convolution that pads with zeros."""
    kernel, stride, dilation = map(_make_pair, (module.kernel_size, module.stride, module.dilation))
    if module.padding == "valid":
        padding = (0, 0, 0, 0)
    elif module.padding == "same":
        rows, columns = (dilation[axis] * (kernel[axis] - 1) for axis in (0, 1))
        padding = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    else:
        assert not isinstance(module.padding, str)
        vertical, horizontal = _make_pair(module.padding)
        padding = (horizontal, horizontal, vertical, vertical)
    return Window(kernel, stride, dilation, padding)


def _make_pair(values: tuple[int, ...]) -> tuple[int, int]:
    first, second = values
    return first, second


def compute_linear_input_factor(
    inputs: Tensor, with_bias: bool, weights: Tensor | None = None
) -> Tensor:
    """Return A of a linear layer, summed over samples: (n, …, d) to (d, d).

    With a bias the result has d + 1 rows and columns. Positions of a sample count as their mean,
    or with their ``weights``, (n, …).
    """
    samples = inputs.shape[0]
    rows = inputs.reshape(-1, inputs.shape[-1])
    weighted, count = rows, rows.shape[0]
    if weights is not None:
        weighted = rows * weights.reshape(-1, 1)
    total = multiply_rows(rows) if weights is None else weighted.T @ rows
    if with_bias:
        ones = count if weights is None else float(weights.sum())
        total = _append_ones(total, weighted.sum(0), ones)
    return total * (samples / max(1, count)) if weights is None else total


def compute_frequencies(rows: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """Return the diagonal of A of an embedding of ``size`` rows, summed over samples: (1, size).

    ``rows`` are the numbers of those that are looked up, (n, …). Positions of a sample count as
    their mean, or with their ``weights``, (n, …).
    """
    if weights is None:
        weights = torch.full_like(rows, len(rows) / max(1, rows.numel()), dtype=torch.float32)
    total = torch.zeros(size, device=rows.device)
    return total.index_add_(0, rows.flatten().long(), weights.flatten().float())[None]


def compute_linear_output_factor(gradients: Tensor) -> Tensor:
    """Return B of a linear layer, summed over samples: (n, …, d) to (d, d)."""
    return multiply_rows(gradients.reshape(-1, gradients.shape[-1]))


def compute_convolution_output_factor(gradients: Tensor) -> Tensor:
    """Return B of a convolution, summed over samples: (n, c, y, x) to (c, c)."""
    return multiply_rows(_group_by_sample(gradients).flatten(0, 1))


def multiply_rows(rows: Tensor) -> Tensor:
    """Return Σ r rᵀ over all rows r, (n, d) to (d, d); of wide rows little more than a triangle.

    1,024 columns of 6,272 rows: 184 ms as one product, 118 ms in four parts (one core).
    """
    size = rows.shape[1]
    if size < WIDE_ROWS:
        return rows.T @ rows
    total = rows.new_empty(size, size)
    for first in range(0, size, WIDE_ROWS // 2):
        last = min(first + WIDE_ROWS // 2, size)
        total[first:, first:last] = rows[:, first:].T @ rows[:, first:last]
        total[first:last, last:] = total[last:, first:last].T
    return total


def compute_convolution_input_factor(images: Tensor, window: Window, with_bias: bool) -> Tensor:
    """Return A of a convolution, summed over samples: (n, c, y, x) to (k, k).

    k is c × kernel positions, or one more with a bias. The result equals that of the unfolded
    input, up to rounding.
    """
    rows, columns = window.count_outputs(*images.shape[2:])
    if window.kernel == (1, 1):
        seen = _take_covered(_pad(images, window), window, (0, 0), (rows, columns))
        total = compute_convolution_output_factor(seen)
    else:
        images = images.contiguous(memory_format=torch.channels_last)  # the faster layout here
        total = _choose_algorithm(images, window)(images, window)
    if with_bias:
        sums = _sum_over_windows(images, window)
        total = _append_ones(total, sums, images.shape[0] * rows * columns)
    return total.div_(max(1, rows * columns))


def _choose_algorithm(images: Tensor, window: Window) -> Callable[[Tensor, Window], Tensor]:
    channels, height, width = images.shape[1:]
    rows, columns = window.kernel
    if height * width < rows * (2 * columns - 1):  # fewer pixels than there are shifts
        return _sum_pixel_pairs
    if window.dilation != (1, 1):
        return _sum_shifts
    is_strided = window.stride != (1, 1)
    return _sum_unfolded if is_strided or channels < FEW_CHANNELS else _sum_correlations


def _sum_pixel_pairs(images: Tensor, window: Window) -> Tensor:
    """Return Σ u uᵀ over all columns u of the unfolded images, for any stride and dilation.

    At each place of the window it takes the part that the window covers of Σ x xᵀ, where x is a
    whole image. ``images`` has shape (n, c, y, x), the result (k, k).
    """
    (rows, columns), channels = window.kernel, images.shape[1]
    height, width = images.shape[2:]
    left, _, top, _ = window.padding
    pixels = images.permute(0, 2, 3, 1).flatten(1)
    pairs = multiply_rows(pixels).view(height, width, channels, height, width, channels)
    total = images.new_zeros(rows, columns, channels, rows, columns, channels)
    outputs = window.count_outputs(height, width)
    down, right = (
        [
            _find_covered(place * window.stride[axis] - before, window, axis, (height, width)[axis])
            for place in range(outputs[axis])
        ]
        for axis, before in ((0, top), (1, left))
    )
    for kernel_rows, pixel_rows in down:
        for kernel_columns, pixel_columns in right:
            kernel, seen = (kernel_rows, kernel_columns), (pixel_rows, pixel_columns)
            total[(*kernel, slice(None), *kernel)] += pairs[(*seen, slice(None), *seen)]
    size = rows * columns * channels
    return total.view(size, size)


def _find_covered(start: int, window: Window, axis: int, size: int) -> tuple[slice, slice]:
    """Return the places of a kernel at ``start`` that lie on a line of pixels, and these pixels."""
    step = window.dilation[axis]
    places = [place for place in range(window.kernel[axis]) if 0 <= start + place * step < size]
    if not places:
        return slice(0, 0), slice(0, 0)
    first, last = places[0], places[-1]
    return slice(first, last + 1), slice(start + first * step, start + last * step + 1, step)


def _sum_unfolded(images: Tensor, window: Window) -> Tensor:
    """Return Σ u uᵀ, (k, k), from the columns u themselves, for kernels without dilation."""
    (rows, columns), channels = window.kernel, images.shape[1]
    outputs = window.count_outputs(*images.shape[2:])
    padded = _pad(images, window).permute(0, 2, 3, 1).contiguous()
    by_sample, by_row, by_pixel, _ = padded.stride()
    # Pixels of a row lie side by side: a column is one piece of memory per row of the kernel.
    unfolded = padded.as_strided(
        (len(padded), *outputs, rows, columns * channels),
        (by_sample, by_row * window.stride[0], by_pixel * window.stride[1], by_row, 1),
    )
    size = rows * columns * channels
    total = images.new_zeros(size, size)
    for some in unfolded.split(max(1, UNFOLDED_AT_ONCE // (outputs[0] * outputs[1] * size))):
        total += multiply_rows(some.reshape(-1, size))
    return total


def _sum_shifts(images: Tensor, window: Window) -> Tensor:
    """Return Σ u uᵀ, (k, k), from products of each kernel row with itself and those below."""
    (rows, columns), channels = window.kernel, images.shape[1]
    outputs = window.count_outputs(*images.shape[2:])
    padded = _pad(images, window)
    of_row = [
        torch.cat(
            [_take_covered(padded, window, (row, column), outputs) for column in range(columns)], 1
        )
        for row in range(rows)
    ]
    width = columns * channels
    total = images.new_empty(rows * width, rows * width)
    for row in range(rows):
        start, end = row * width, (row + 1) * width
        products = _multiply_shifted(of_row[row], torch.cat(of_row[row:], 1), (1, 1)).flatten(1)
        total[start:end, start:] = products
        total[end:, start:end] = products[:, width:].T
    return total


def _take_covered(
    padded: Tensor, window: Window, place: tuple[int, int], outputs: tuple[int, int]
) -> Tensor:
    """Return what one place of the kernel covers in padded images, (n, c, *outputs)."""
    starts = [window.dilation[axis] * place[axis] for axis in (0, 1)]
    rows, columns = (
        slice(starts[axis], starts[axis] + window.stride[axis] * outputs[axis], window.stride[axis])
        for axis in (0, 1)
    )
    return padded[:, :, rows, columns]


def _sum_over_windows(images: Tensor, window: Window) -> Tensor:
    """Return Σ u, (k,), over all columns u of the unfolded images."""
    outputs = window.count_outputs(*images.shape[2:])
    padded = _pad(images.sum(0, keepdim=True), window)
    rows, columns = window.kernel
    places = [(row, column) for row in range(rows) for column in range(columns)]
    return torch.cat(
        [_take_covered(padded, window, place, outputs).sum((0, 2, 3)) for place in places]
    )


def _sum_correlations(images: Tensor, window: Window) -> Tensor:
    """Return Σ u uᵀ, (k, k), for windows that move by one pixel.

    The products of two positions of the kernel depend only on the shift between them, except at the
    borders of the image that one of the two does not reach. So each shift is summed once over the
    whole image, and the borders are subtracted.
    """
    (rows, columns), channels = window.kernel, images.shape[1]
    height, width = images.shape[2:]
    outputs = window.count_outputs(height, width)
    left, _, top, _ = window.padding
    missed_rows = [_find_outside(row - top, outputs[0], height) for row in range(rows)]
    missed_columns = [_find_outside(column - left, outputs[1], width) for column in range(columns)]
    shifts = _Shifts(images, window.kernel)
    total = images.new_empty(rows, columns, channels, rows, columns, channels)
    for row in range(rows):
        for column in range(columns):
            blocks = shifts.sum_over_window(row, column, missed_rows[row], missed_columns[column])
            total[row, column, :, row:] = blocks.permute(2, 0, 1, 3)
    size = rows * columns * channels
    flat = total.view(size, size)
    for start in range(columns * channels, size, columns * channels):  # rows above the diagonal
        end = start + columns * channels
        flat[start:end, :start] = flat[:start, start:end].T
    return flat


def _find_outside(start: int, length: int, size: int) -> list[int]:
    """Return the pixels of a line that a window from ``start`` on does not cover."""
    return [pixel for pixel in range(size) if not start <= pixel < start + length]


class _Shifts:
    """Σ x(t) x(t + Δ)ᵀ over samples and positions t, per shift Δ; x is 0 outside the image."""

    def __init__(self, images: Tensor, kernel: tuple[int, int]) -> None:
        self._images, (self._rows, self._columns) = images, kernel
        reach = self._columns - 1
        around = functional.pad(images, (reach, reach, 0, self._rows - 1))
        products = _multiply_shifted(images, around, (self._rows, 2 * reach + 1))
        self._everywhere = products.permute(2, 3, 0, 1).contiguous()
        self._of_row: dict[tuple[int, int], Tensor] = {}
        self._of_column: dict[tuple[int, int], Tensor] = {}

    def sum_over_window(
        self, row: int, column: int, missed_rows: list[int], missed_columns: list[int]
    ) -> Tensor:
        """Return the sums for a place of the kernel and all in its row and below it.

        Their shape is (rows from ``row`` on, columns, c, c). Pixels t in the missed rows or columns
        are left out.
        """
        first = self._columns - 1 - column  # among the shifts to the right
        to_right = slice(first, first + self._columns)
        total = self._everywhere[: self._rows - row, to_right].clone()
        height, width = self._images.shape[2:]
        for pixel_row in missed_rows:
            for down in range(min(self._rows - row, height - pixel_row)):
                total[down] -= self._sum_row(pixel_row, down)[to_right]
        for pixel_column in missed_columns:
            for place in range(self._columns):
                right = place - column
                if not 0 <= pixel_column + right < width:
                    continue
                total[:, place] -= self._sum_column(pixel_column, right)[: self._rows - row]
                for pixel_row in missed_rows:
                    corner = self._images[:, :, pixel_row, pixel_column]
                    for down in range(min(self._rows - row, height - pixel_row)):
                        other = self._images[:, :, pixel_row + down, pixel_column + right]
                        total[down, place] += corner.T @ other
        return total

    def _sum_row(self, row: int, down: int) -> Tensor:
        """Return the sums with t in one row only, (shifts to the right, c, c)."""
        if (row, down) not in self._of_row:
            reach = self._columns - 1
            other = functional.pad(self._images[:, :, row + down, None], (reach, reach))
            products = _multiply_shifted(self._images[:, :, row, None], other, (1, 2 * reach + 1))
            self._of_row[row, down] = products[:, :, 0].permute(2, 0, 1)
        return self._of_row[row, down]

    def _sum_column(self, column: int, right: int) -> Tensor:
        """Return the sums with t in one column only, (shifts downwards, c, c)."""
        if (column, right) not in self._of_column:
            start = column + right
            other = functional.pad(self._images[..., start : start + 1], (0, 0, 0, self._rows - 1))
            products = _multiply_shifted(
                self._images[..., column : column + 1], other, (self._rows, 1)
            )
            self._of_column[column, right] = products[..., 0].permute(2, 0, 1)
        return self._of_column[column, right]


def compute_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel: (n, c, …) to (c,) each."""
    rows = _group_by_sample(inputs).flatten(0, 1)
    mean = rows.mean(0)
    return mean, (rows - mean).square_().mean(0)  # torch.var_mean takes ten times as long here


def compute_batch_norm_fisher(
    inputs: Tensor, gradients: Tensor, mean: Tensor, deviation: Tensor
) -> Tensor:
    """Return the unit-wise Fisher of a batch normalisation, (n, c, …) to (3, c).

    It is summed over samples. The rows are the products of the gradients per sample of γ and γ,
    γ and β, β and β (Osawa et al. 2020, arXiv:2002.06015, section 3).
    """
    inputs, gradients = _group_by_sample(inputs), _group_by_sample(gradients)
    of_shift = gradients.sum(1)
    of_scale = ((gradients * inputs).sum(1) - mean * of_shift) / deviation
    return torch.stack(
        [of_scale.square().sum(0), (of_scale * of_shift).sum(0), of_shift.square().sum(0)]
    )


def _group_by_sample(images: Tensor) -> Tensor:
    """Return (n, c, …) as (n, positions, c), without a copy if channels lie side by side."""
    return images.movedim(1, -1).reshape(len(images), -1, images.shape[1])


def _multiply_shifted(images: Tensor, shifted: Tensor, kernel: tuple[int, int]) -> Tensor:
    """Return Σ images[n, c, t] · shifted[n, c', t + place], (c, c', rows, columns).

    The sum is over n and t.
    """
    size = (images.shape[1], shifted.shape[1], *kernel)
    return cast(Tensor, conv2d_weight(shifted, size, images))


def _pad(images: Tensor, window: Window) -> Tensor:
    return functional.pad(images, window.padding) if any(window.padding) else images


def _append_ones(products: Tensor, sums: Tensor, ones: float) -> Tensor:
    """Return the products of rows with a 1 appended, from the products and sums of the rows."""
    size = len(sums)
    total = products.new_empty(size + 1, size + 1)
    total[:size, :size] = products
    total[:size, size] = total[size, :size] = sums
    total[size, size].fill_(ones)  # an assignment would have the host wait for the device
    return total
