# SPDX-License-Identifier: Apache-2.0
"""The versions of Python's packages."""
import importlib.metadata
import os
import sys


def say():
    print("python", sys.version.split()[0], "root" if os.geteuid() == 0 else "not root")
    for name in ("libgpumem", "numpy", "torch", "jax", "jaxlib", "cupy-cuda13x", "cupy", "numba",
                 "numba-cuda", "cuda-python", "cuda-bindings", "cuda-core", "cuda-pathfinder",
                 "transformers", "vllm", "sglang"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        tests = [str(file) for file in distribution.files or ()
                 if "/test_" in str(file) and str(file).endswith(".py")]
        of_memory = sum("memory" in file or "alloc" in file or "test_cuda" in file
                        for file in tests)
        print(f"{name} {distribution.version}: {len(tests)} files of tests in the wheel, "
              f"{of_memory} of memory by their names")
    sys.stdout.flush()
