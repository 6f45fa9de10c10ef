# SPDX-License-Identifier: Apache-2.0
"""What the tests of cuda.bindings.runtime share."""
import numpy as np
import pytest

cudart = pytest.importorskip("cuda.bindings.runtime")


def ok(result):
    """Returns a cudart call's results, without its error, which must be none."""
    assert result[0] == cudart.cudaError_t.cudaSuccess, result[0]
    return result[1] if len(result) == 2 else result[1:]


def fill(pointer, value, count):
    ok(cudart.cudaMemset(pointer, value, count))
    ok(cudart.cudaDeviceSynchronize())


def read(pointer, count):
    host = np.zeros(count, dtype="uint8")
    ok(cudart.cudaMemcpy(host.ctypes.data, pointer, count,
                         cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    return host
