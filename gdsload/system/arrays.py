"""Kinds of arrays that are passed from room to room."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["IntArray"]

IntArray = NDArray[np.int64]
