# SPDX-License-Identifier: Apache-2.0
"""The parts of Numba's External Memory Management that gpumem.numba uses, for machines with
neither Numba nor a GPU. The interface is that of
numba.readthedocs.io/en/stable/cuda/external-memory.html, with pointers that are numbers of ctypes.
"""
