# SPDX-License-Identifier: Apache-2.0
"""What the tests of gpumem.numba share."""
import gc

import pytest

cuda = pytest.importorskip("numba.cuda")


def manager():
    """Returns the plugin of Numba's current context."""
    return cuda.current_context().memory_manager


def settle():
    """Does the frees that Numba and the plugin have deferred."""
    gc.collect()
    cuda.current_context().deallocations.clear()
    manager().deallocations.clear()
