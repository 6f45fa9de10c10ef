# SPDX-License-Identifier: Apache-2.0
"""Serving: see Client.serve_suspensions()."""
from .suspensions import Serving

__all__ = ["Serving"]
