# SPDX-License-Identifier: Apache-2.0
"""Weights of a model: from files to the GPU of every worker, once.

    import gpumem.serving
    weights = gpumem.serving.load_or_attach("llama", "/models/llama")   # a folder of safetensors
    weights.bind(model)                                                 # mapped, not copied

The first worker of the machine loads the files, the others wait for it and attach. All of them, the
first included, map the same memory, which stays when they end. A worker that starts again attaches
without reading a file.

    weights = gpumem.serving.load_or_attach("llama", engine_loader, content_id=checkpoint_revision)
    gpumem.serving.push("llama", new_tensors)     # a trainer: the next version
    weights.update()                              # a worker, between two requests

gpumem.Serving serves requests to suspend and to demote memory: Client.serve_suspensions().
"""
from __future__ import annotations

from .load import Source, load_or_attach, push
from .suspensions import Serving
from .weights import Weights

__all__ = ["Serving", "Source", "Weights", "load_or_attach", "push"]
