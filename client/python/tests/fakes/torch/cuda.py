# SPDX-License-Identifier: Apache-2.0
import contextlib

current = None


def is_available():
    return False


class _Allocator:
    def __init__(self, path, malloc, free):
        self.said = (path, malloc, free)

    def allocator(self):
        return ("of", self)


class memory:
    CUDAPluggableAllocator = _Allocator

    @staticmethod
    def change_current_allocator(allocator):
        global current
        current = allocator


class MemPool:
    used = False

    def __init__(self, allocator, **options):
        self.allocator, self.options = allocator, options


@contextlib.contextmanager
def use_mem_pool(pool):
    pool.used = True
    yield
