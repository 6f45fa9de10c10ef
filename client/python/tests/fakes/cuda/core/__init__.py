# SPDX-License-Identifier: Apache-2.0
"""The parts of cuda.core that gpumem.cuda_core uses: see the documentation of Buffer.from_handle
and MemoryResource. TELLS: the end of a buffer calls its resource, as in most versions."""
TELLS = True


class MemoryResource:
    pass


class Buffer:
    @classmethod
    def from_handle(cls, ptr, size, mr=None, owner=None):
        if mr is not None and owner is not None:
            raise ValueError("owner and memory resource cannot be both specified together")
        made = cls()
        made.handle, made.size, made.memory_resource, made._owner = ptr, size, mr, owner
        return made

    def close(self, stream=None):
        if self.handle and self.memory_resource is not None and TELLS:
            self.memory_resource.deallocate(self.handle, self.size, stream)
        self.handle = self.memory_resource = self._owner = None

    def __del__(self):
        self.close()
