# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: programs of `./run fuzz`, and tests of the suite."""

load(":defs.bzl", "gpumem_cc_fuzz_program")

def gpumem_fuzz_test(name, srcs = None, deps = [], data = [], rounds = 20000, size = "small", **kwargs):
    """A function of bytes, LLVMFuzzerTestOneInput, that must hold for all bytes.

    As a test, it gets the seeds in testing/fuzz/NAME, and mutations of them that are the same in each
    run. In --config=fuzz-libfuzzer and --config=fuzz-afl, it gets what the engine makes of them.

    Args:
      name: the test; "_fuzz" at its end is left out of NAME.
      srcs: its sources; by default name.cc.
      deps: as for gpumem_cc_test.
      data: files that it needs beside its seeds and its dictionary, testing/fuzz/NAME.dict.
      rounds: how many mutations the test tries.
      size: as for gpumem_cc_test.
      **kwargs: as for cc_test.
    """
    stem = name[:-len("_fuzz")]
    seeds = native.glob(["testing/fuzz/%s/*" % stem])
    words = native.glob(["testing/fuzz/%s.dict" % stem], allow_empty = False)
    gpumem_cc_fuzz_program(
        name = name,
        srcs = srcs or [name + ".cc"],
        size = size,
        args = ["--rounds=%d" % rounds] +
               ["--dictionary=$(rootpath %s)" % file for file in words] +
               ["$(rootpath %s)" % file for file in seeds],
        data = seeds + words + data,
        deps = deps,
        **kwargs
    )
