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
def name(client):
    """An unused name for a publication; unpublished at the end."""
    import gpumem
    made = f"test-{uuid.uuid4().hex}"
    yield made
    try:
        client.unpublish(made)
    except gpumem.NotFoundError:
        pass
