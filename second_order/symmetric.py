"""Symmetric matrices as their upper triangles: half the numbers to send.

The triangle is folded into a rectangle, as LAPACK's "rectangular full packed" format does
(Gustavson et al. 2010, doi:10.1145/1731022.1731028), so that it takes a few block copies and no
table of indices.
"""

from torch import Tensor


def count_packed(size: int) -> int:
    """Return the number of elements in the upper triangle of a square matrix."""
    return size * (size + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """Pack the upper triangle with its diagonal: (n, n) to (n (n + 1) / 2,)."""
    half = matrix.shape[0] // 2
    rest = matrix.shape[0] - half
    folded = matrix.new_zeros(half + 1, rest)
    folded[:rest] = matrix[half:, half:].triu()
    folded[1:, :half] += matrix[:half, :half].T.tril()
    top = matrix[:half, half:]
    flat = matrix.new_empty(count_packed(matrix.shape[0]))
    flat[: top.numel()].view_as(top).copy_(top)
    flat[top.numel() :].view_as(folded).copy_(folded)
    return flat


def unpack(flat: Tensor, size: int) -> Tensor:
    """Unpack (n (n + 1) / 2,) to the symmetric matrix (n, n), with n = ``size``."""
    half = size // 2
    rest = size - half
    top = flat[: half * rest].view(half, rest)
    folded = flat[half * rest :].view(half + 1, rest)
    matrix = flat.new_empty(size, size)
    matrix[:half, half:] = top
    matrix[half:, :half] = top.T
    upper, lower = folded[:rest].triu(), folded[1:, :half].tril()
    matrix[half:, half:] = upper + upper.triu(1).T
    matrix[:half, :half] = lower + lower.tril(-1).T
    return matrix
