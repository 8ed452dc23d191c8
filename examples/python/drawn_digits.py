"""Pictures of digits, drawn on the spot: something to learn from without a download."""

from __future__ import annotations

import numpy as np

# Five rows of three pixels for each digit.
FONT = np.array(
    [
        [int(pixel) for pixel in glyph]
        for glyph in (
            "111101101101111 010110010010111 111001111100111 111001111001111 101101111001001 "
            "111100111001111 111100111101111 111001001001001 111101111101111 111101111001111"
        ).split()
    ],
    np.float32,
).reshape(10, 5, 3)


def digits(count: int, size: int = 12, noise: float = 0.15, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images (count, 1, size, size) and their labels: digits of twice the font's size, anywhere, in noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count)
    glyphs = FONT.repeat(2, 1).repeat(2, 2)
    images = rng.normal(0, noise, (count, 1, size, size)).astype(np.float32)
    rows, columns = (rng.integers(0, size - extent + 1, count) for extent in glyphs.shape[1:])
    for image, label, row, column in zip(images, labels, rows, columns):
        image[0, row : row + glyphs.shape[1], column : column + glyphs.shape[2]] += glyphs[label] * rng.uniform(0.7, 1.3)
    return images, labels
