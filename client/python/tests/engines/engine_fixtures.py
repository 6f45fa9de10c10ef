# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the plug-ins: stand-ins of the engines, and a folder of a model."""
import importlib
import os
import sys

import pytest
from serving_fixtures import values

ENGINES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakes")


def plugin_of(name):
    """Returns the plug-in and the stand-in of its engine, registered."""
    if ENGINES not in sys.path:
        sys.path.insert(0, ENGINES)
    plugin = importlib.import_module(f"gpumem.{name}")
    plugin.register()
    return plugin, importlib.import_module(name)


@pytest.fixture(name="folder")
def _folder(tmp_path):
    """A folder of a model."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def numbers(tensor):
    return values(tensor).tolist()
