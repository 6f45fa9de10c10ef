# SPDX-License-Identifier: Apache-2.0
"""Replaces the package `filecheck`, which each of numba-cuda's tests imports and few use. runner.py
puts it into a folder as filecheck.py, for Numba's own tests alone, if the package is not installed.
A test that does use it is skipped.
"""
import sys
import types
import unittest


class _NotHere(types.ModuleType):
    """Whatever is asked of it is a function that ends the test."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def skip(*_, **__):
            raise unittest.SkipTest("the package filecheck is not installed")
        return skip


# Found by the import of filecheck.NAME, which imports filecheck before it looks for the rest.
for _name in ("finput", "matcher", "options", "parser"):
    sys.modules[f"filecheck.{_name}"] = _NotHere(f"filecheck.{_name}")
