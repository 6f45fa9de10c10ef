# SPDX-License-Identifier: Apache-2.0
"""The parts of JAX that make arrays of other libraries' memory, and give it: for machines without
JAX. The calls are those of JAX 0.10: it asks for an unversioned capsule."""
from . import dlpack


class Array:
    """A view of memory that a DLPack capsule keeps."""

    def __init__(self, owner, pointer, shape, dtype):
        self._owner, self._pointer, self.shape, self.dtype = owner, pointer, shape, dtype

    def unsafe_buffer_pointer(self):
        return self._pointer

    def __dlpack_device__(self):
        return self._owner.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """JAX 0.10 gives an unversioned capsule whatever max_version says."""
        return self._owner.__dlpack__(stream=stream)


dlpack.Array = Array
