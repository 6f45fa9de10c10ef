# SPDX-License-Identifier: Apache-2.0
"""The parts of CuPy that gpumem.cupy calls, over ctypes: for machines with neither CuPy nor a GPU.

Signatures and order of calls are those of CuPy's documentation of cupy.cuda."""
from . import cuda


__version__ = "14.2.0"
_default_memory_pool = cuda.default_pool
_default_pinned_memory_pool = cuda.default_pool


def get_default_memory_pool():
    return _default_memory_pool


def get_default_pinned_memory_pool():
    return _default_pinned_memory_pool
