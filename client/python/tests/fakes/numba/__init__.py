"""As much of Numba's External Memory Management as gpumem.numba meets, for machines that have
neither Numba nor a GPU: the interface of numba.readthedocs.io/en/stable/cuda/external-memory.html,
with pointers that are numbers of ctypes."""
