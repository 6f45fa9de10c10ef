# SPDX-License-Identifier: Apache-2.0
import os
import sys
import uuid

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture
def client():
    import gpumem
    return gpumem.default_client()


@pytest.fixture
def pool(client):
    with client.pool(limit=1 << 30) as pool:
        yield pool


@pytest.fixture
def cupy_restored():
    """CuPy allocates by its default pools again at the end."""
    yield
    import gpumem.cupy
    gpumem.cupy.unuse()


@pytest.fixture
def device():
    """GPU 0 of cuda.core, as the current device."""
    try:
        from cuda.core import Device
    except ImportError:
        from cuda.core.experimental import Device
    device = Device(0)
    device.set_current()
    return device


@pytest.fixture
def name(client):
    """An unused name for a publication; unpublished at the end."""
    import gpumem
    made = f"test-{uuid.uuid4().hex}"
    yield made
    try:
        client.unpublish(made)
    except gpumem.NotFoundError:
        pass
