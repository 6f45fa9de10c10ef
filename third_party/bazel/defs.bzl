# SPDX-License-Identifier: Apache-2.0
"""The rules that gpumem's BUILD files use: native rules with the project's defaults."""

load(":units.bzl", "joined")

# Errors in our own code only: generated code and external repositories do not get these.
_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wcast-qual",
    "-Wextra-semi",
    "-Wformat=2",
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Wshadow",
    "-Wundef",
    "-Wvla",
    # Designated initializers leave out members on purpose.
    "-Wno-missing-field-initializers",
    # GCC 12 sees overlaps inside std::string that are not there (GCC bug 105651).
    "-Wno-restrict",
]

# The path to the shared libraries beside a release's programs and libraries. DT_RPATH, because
# unlike DT_RUNPATH it also serves those libraries' dependencies.
_OLD_DTAGS = "-Wl,--disable-new-dtags"
_BUNDLE_OF_BIN = [
    _OLD_DTAGS,
    "-Wl,-rpath,$$ORIGIN/../lib",
    "-Wl,-rpath,$$ORIGIN/../lib/gpumem",
    "-Wl,-rpath,$$ORIGIN/../lib/gpumem/c++",
]

# Not the C++ runtime: the process that loads the library has one, perhaps a newer one.
_BUNDLE_OF_LIB = [_OLD_DTAGS, "-Wl,-rpath,$$ORIGIN/gpumem"]

def _when_bundled(linkopts):
    return select({
        "//third_party/bazel:bundled_syslibs": linkopts,
        "//conditions:default": [],
    })

# See tsan_mutex.cc. Programs get it, not libraries, so that it comes before what it stands for.
_FOR_TSAN = select({
    "//third_party/bazel:tsan": ["//third_party/bazel:tsan_mutex"],
    "//conditions:default": [],
})

# See older_glibc.cc. Only --config=dist-static puts the C++ runtime into programs.
_FOR_OLDER_GLIBC = select({
    "//third_party/bazel:static_syslibs": ["//third_party/bazel:older_glibc"],
    "//conditions:default": [],
})

def gpumem_cc_library(
        name,
        srcs = [],
        copts = [],
        testonly = False,
        separate = False,
        **kwargs):
    """A library, whose sources are compiled together; see units.bzl.

    Args:
      name: the library.
      srcs: its sources.
      copts: more flags of the compiler.
      testonly: only for tests.
      separate: each source is compiled by itself. By default no two of them may define the same name
        in unnamed namespaces.
      **kwargs: as for cc_library.
    """
    native.cc_library(
        name = name,
        srcs = srcs if separate else joined(name, srcs, testonly),
        testonly = testonly,
        copts = _COPTS + copts,
        # No lib<name>.so of Bazel's own making, which would take the name from ours.
        linkstatic = True,
        **kwargs
    )

def gpumem_cc_binary(
        name,
        srcs = [],
        copts = [],
        deps = [],
        linkopts = [],
        testonly = False,
        **kwargs):
    native.cc_binary(
        name = name,
        srcs = joined(name, srcs, testonly),
        testonly = testonly,
        copts = _COPTS + copts,
        deps = deps + _FOR_TSAN + _FOR_OLDER_GLIBC,
        linkopts = linkopts + _when_bundled(_BUNDLE_OF_BIN),
        **kwargs
    )

def gpumem_cc_test(name, srcs, copts = [], deps = [], size = "small", **kwargs):
    """A GoogleTest suite; main() and GoogleMock come with it."""
    native.cc_test(
        name = name,
        srcs = joined(name, srcs, True),
        size = size,
        copts = _COPTS + copts,
        deps = deps + ["@googletest//:gmock_main"] + _FOR_TSAN,
        **kwargs
    )

# The main function of a fuzz target, and what it needs; see fuzz.bzl.
_FUZZ_MAIN = select({
    "//third_party/bazel:afl": [],
    "//third_party/bazel:libfuzzer": [],
    "//conditions:default": ["//common/testing/fuzz:driver"],
})
_FUZZ_LINKOPTS = select({
    "//third_party/bazel:afl": [
        "/usr/lib/afl/libAFLDriver.a",
        "/usr/lib/afl/afl-compiler-rt.o",
    ],
    "//third_party/bazel:libfuzzer": ["-fsanitize=fuzzer"],
    "//conditions:default": [],
})

def gpumem_cc_fuzz_program(name, srcs, copts = [], deps = [], tags = [], linkopts = [], **kwargs):
    """The program of gpumem_fuzz_test; see fuzz.bzl."""
    native.cc_test(
        name = name,
        srcs = joined(name, srcs, True),
        copts = _COPTS + copts,
        linkopts = linkopts + _FUZZ_LINKOPTS,
        tags = tags + ["fuzz"],
        deps = deps + _FUZZ_MAIN + _FOR_TSAN,
        **kwargs
    )

# The programs that a test can run, and the variables by which it finds them.
_PROGRAMS = {
    "//client/cli:gpumemctl": "GPUMEM_GPUMEMCTL",
    "//client/kubernetes/device_plugin:gpumem-device-plugin": "GPUMEM_GPUMEM_DEVICE_PLUGIN",
    "//client/kubernetes/dra:gpumem-dra-driver": "GPUMEM_GPUMEM_DRA_DRIVER",
    "//client/kubernetes:gpumem-kubelet-plugin": "GPUMEM_GPUMEM_KUBELET_PLUGIN",
    "//client/slurm:gpumem-slurm": "GPUMEM_GPUMEM_SLURM",
    "//client/slurm/spank:spank_gpumem.so": "GPUMEM_SPANK_GPUMEM_SO",
    "//client/web:gpumem-web": "GPUMEM_GPUMEM_WEB",
    "//daemon/keeper:gpumem-keeper": "GPUMEM_KEEPER",
    "//daemon:gpumemd": "GPUMEM_GPUMEMD",
    "//daemon:gpumemd_mortal": "GPUMEM_GPUMEMD_MORTAL",
    "//daemon:gpumemd_next": "GPUMEM_GPUMEMD_NEXT",
    "//tests/slurm:one_hierarchy.so": "GPUMEM_ONE_HIERARCHY_SO",
}

def gpumem_daemon_test(
        name,
        srcs = None,
        size = "medium",
        programs = ["//daemon:gpumemd"],
        data = [],
        env = {},
        **kwargs):
    """A test that runs real programs of gpumem, by default gpumemd, and other processes beside them.

    Args:
      name: the test.
      srcs: its sources; by default name.cc.
      size: its size.
      programs: those of _PROGRAMS that it runs.
      data: files that it needs beside them.
      env: environment variables beside those of the programs.
      **kwargs: as for gpumem_cc_test.
    """
    gpumem_cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        size = size,
        data = programs + data,
        env = dict(env, **{_PROGRAMS[p]: "$(rootpath %s)" % p for p in programs}),
        **kwargs
    )

def gpumem_cc_shared_library(name, exports, deps, linkopts = [], plugin = False, **kwargs):
    """lib*.so holding the whole of deps, exporting only what the version script allows.

    Args:
      name: the file's name, such as "libgpumem.so".
      exports: the linker version script.
      deps: libraries; all their code goes in, used or not (see whole_archive in .bazelrc).
      linkopts: more linker flags; -soname, for one.
      plugin: some of the functions that it calls are those of the program that loads it.
      **kwargs: as for cc_binary.
    """
    native.cc_binary(
        name = name,
        linkshared = True,
        linkopts = [
            "-Wl,--version-script=$(location %s)" % exports,
        ] + ([] if plugin else ["-Wl,-z,defs"]) + [
            # Calls inside the library stay inside it, whatever the program defines.
            "-Wl,-Bsymbolic",
        ] + linkopts + _when_bundled(_BUNDLE_OF_LIB),
        deps = deps + [exports],
        **kwargs
    )
