"""Matrices for tests, inside memory full of NaN, so that stray reads and stray writes show."""

import torch

MARGIN = 4096


class Field:
    """A matrix, with gaps between its rows, and room before and after it."""

    def __init__(self, dtype, rows, cols, values=None, stride=None):
        self.stride = stride or cols + 5
        self.memory = torch.full((MARGIN + (rows + 64) * self.stride + MARGIN,), float("nan"), dtype=dtype)
        self.mat = self._inside(self.memory, rows, cols)
        if values is not None:
            self.mat.copy_(torch.from_numpy(values))

    def _inside(self, memory, rows, cols):
        return memory[MARGIN:MARGIN + rows * self.stride].view(rows, self.stride)[:, :cols]

    def numpy(self):
        return self.mat.double().numpy()

    def intact_outside(self):
        """Whether all but the matrix is still NaN."""
        copy = self.memory.clone()
        self._inside(copy, *self.mat.shape).fill_(float("nan"))
        return bool(torch.isnan(copy).all())
