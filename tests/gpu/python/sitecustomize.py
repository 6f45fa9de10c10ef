# SPDX-License-Identifier: Apache-2.0
"""Python runs this at the start of each process of run.sh, since the folder is in PYTHONPATH.

numba-cuda 0.30 uses names of NumPy that NumPy 2.5 no longer has, and then compiles no kernel, with
gpumem or without. Here they are NumPy's recommended replacements.
"""
try:
    import numpy
except ImportError:
    pass
else:
    for _old, _new in (("row_stack", "vstack"), ("trapz", "trapezoid"), ("in1d", "isin"),
                       ("product", "prod"), ("cumproduct", "cumprod"), ("alltrue", "all"),
                       ("sometrue", "any")):
        if _old not in numpy.__dict__ and hasattr(numpy, _new):
            setattr(numpy, _old, getattr(numpy, _new))
