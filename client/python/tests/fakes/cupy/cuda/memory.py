# SPDX-License-Identifier: Apache-2.0
class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size} bytes")
        self.size, self.total, self.limit = size, total, limit
