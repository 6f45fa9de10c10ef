# SPDX-License-Identifier: Apache-2.0
"""Repository rules that present Debian's libraries and tools as Bazel targets.

pkg-config is the source of truth for link flags. Each library links shared by
default, which makes quick builds, and static with --define=syslibs=static, as
far as Debian has the archives.
"""

_HINT = "`./run build` installs what is missing"

# Parts of the C library: shared even where everything else is static.
_LIBC = ["-lpthread", "-ldl", "-lrt", "-lm", "-lc", "-latomic"]

def _which(ctx, tool):
    path = ctx.which(tool)
    if path == None:
        fail("@%s: no %s on PATH; %s" % (ctx.name, tool, _HINT))
    return path

def _words(ctx, command):
    done = ctx.execute(command)
    if done.return_code:
        fail("@%s: %s: %s" % (ctx.name, " ".join([str(word) for word in command]), done.stderr))
    return [word for word in done.stdout.replace("\n", " ").split(" ") if word]

def _unique_last(flags):
    """Drops repeats, keeping the last of each: the order that one-pass linkers need."""
    kept = {}
    for flag in reversed(flags):
        kept[flag] = True
    return reversed(kept.keys())

def _archive(ctx, compiler, flag):
    """-lx as the full path of libx.a where there is one, else unchanged."""
    if flag in _LIBC or flag.startswith("-l:"):
        return flag
    path = _words(ctx, [compiler, "-print-file-name=lib%s.a" % flag[2:]])[0]
    return path if path.startswith("/") else flag

_PKG_CONFIG_LIBRARY = """
cc_library(
    name = "{name}",
    defines = {defines},
    linkopts = select({{
        ":static": {static},
        "//conditions:default": {shared},
    }}),
)
"""

def _pkg_config_repository_impl(ctx):
    pkg_config = _which(ctx, "pkg-config")
    compiler = _which(ctx, ctx.os.environ.get("CC", "gcc"))

    build = """
package(default_visibility = ["//visibility:public"])

config_setting(
    name = "static",
    define_values = {"syslibs": "static"},
)
"""
    for name, packages in ctx.attr.packages.items():
        cflags = _words(ctx, [pkg_config, "--cflags"] + packages)
        if [flag for flag in cflags if flag.startswith("-I")]:
            fail("@%s: headers outside the compiler's own directories: %s" % (ctx.name, cflags))
        more = ctx.attr.more_libs.get(name, [])
        own = [flag for flag in more if flag.startswith("-l:")]
        libs = {}
        for mode in ["--shared", "--static"]:
            flags = _words(ctx, [pkg_config, "--libs", mode] + packages) + more
            libs[mode] = own + [
                flag
                for flag in _unique_last(flags)
                if flag.startswith("-l") and flag not in own
            ]
        static = [_archive(ctx, compiler, flag) for flag in libs["--static"]]
        build += _PKG_CONFIG_LIBRARY.format(
            name = name,
            # NOMINMAX is Abseil's word for Windows.
            defines = [f[2:] for f in cflags if f.startswith("-D") and f != "-DNOMINMAX"],
            shared = ["-Wl,--as-needed"] + libs["--shared"] + ["-Wl,--no-as-needed"],
            static = ["-Wl,--as-needed,--start-group"] + static + ["-Wl,--end-group,--no-as-needed"],
        )
    ctx.file("BUILD.bazel", build)

pkg_config_repository = repository_rule(
    doc = "One cc_library for each entry of packages.",
    implementation = _pkg_config_repository_impl,
    attrs = {
        "more_libs": attr.string_list_dict(doc = "library -> linker flags that its .pc files lack"),
        "packages": attr.string_list_dict(doc = "library -> pkg-config packages", mandatory = True),
    },
    environ = ["PKG_CONFIG_PATH", "CC"],
    configure = True,
)

def _header_only_repository_impl(ctx):
    if not ctx.path("/usr/include/" + ctx.attr.header).exists:
        fail("@%s: no /usr/include/%s; %s" % (ctx.name, ctx.attr.header, _HINT))
    if ctx.attr.source:
        ctx.symlink(ctx.attr.source, "source.cc")
    ctx.file("BUILD.bazel", """
cc_library(
    name = "%s",
    srcs = glob(["source.cc"]),
    copts = ["-w"],
    defines = %s,
    visibility = ["//visibility:public"],
)
""" % (ctx.name, ctx.attr.defines))

header_only_repository = repository_rule(
    doc = "A library in headers, which are in the compiler's own include directory.",
    implementation = _header_only_repository_impl,
    attrs = {
        "defines": attr.string_list(),
        "header": attr.string(mandatory = True),
        "source": attr.label(
            doc = "What the headers leave out, if it is compiled by itself.",
            allow_single_file = True,
        ),
    },
    configure = True,
)

def _host_tools_repository_impl(ctx):
    for tool in ctx.attr.tools:
        ctx.symlink(_which(ctx, tool), tool)
    ctx.file("BUILD.bazel", "exports_files(%s)\n" % ctx.attr.tools)

host_tools_repository = repository_rule(
    doc = "Programs on PATH, as labels for actions.",
    implementation = _host_tools_repository_impl,
    attrs = {"tools": attr.string_list(mandatory = True)},
    configure = True,
)

def _cuda_repository_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "") or "/usr/local/cuda"

    host_only = ctx.os.environ.get("GPUMEM_HOST_ONLY", "") == "1"

    # One path() call, not get_child("include/cuda.h"): the slash would crash Bazel 4.
    found = not host_only and ctx.path(home + "/include/cuda.h").exists
    if found:
        ctx.symlink(home + "/include", "include")
    elif not host_only:
        # buildifier: disable=print
        print("no CUDA toolkit in %s: building without the CUDA backend (CUDA_HOME chooses another place)" % home)
    ctx.file("BUILD.bazel", """
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/crt/*.h"], allow_empty = True),
    defines = ["GPUMEM_WITH_CUDA=%d"],
    includes = %s,
    visibility = ["//visibility:public"],
)

# The driver's functions, for tests that read them.
filegroup(
    name = "cuda_h",
    srcs = glob(["include/cuda.h"], allow_empty = True),
    visibility = ["//visibility:public"],
)

# CCCL's headers; before CUDA 13 they lie among the others.
cc_library(
    name = "cccl",
    hdrs = glob(
        [
            "include/*.hpp",
            "include/crt/*.hpp",
            "include/cccl/cuda/**",
            "include/cccl/nv/**",
            "include/cuda/**",
            "include/nv/**",
        ],
        allow_empty = True,
    ),
    # For versions before 3.1.
    defines = ["LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"],
    includes = %s,
    visibility = ["//visibility:public"],
    deps = [":headers"],
)
""" % (1 if found else 0, ["include"] if found else [], ["include/cccl"] if found else []))

cuda_repository = repository_rule(
    doc = """The CUDA toolkit's headers, and GPUMEM_WITH_CUDA=1; GPUMEM_WITH_CUDA=0 where there is none, or where
GPUMEM_HOST_ONLY=1 asks for a build without it.

No library of the toolkit is linked: the driver is loaded at run time.""",
    implementation = _cuda_repository_impl,
    environ = [
        "CUDA_HOME",
        "GPUMEM_HOST_ONLY",
    ],
    configure = True,
)

def _python_repository_impl(ctx):
    pkg_config = _which(ctx, "pkg-config")
    include = [
        flag[2:]
        for flag in _words(ctx, [pkg_config, "--cflags", "python3"])
        if flag.startswith("-I")
    ]
    ctx.symlink(include[0], "include")
    ctx.file("BUILD.bazel", """
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)

cc_library(
    name = "embed",
    linkopts = %s,
    visibility = ["//visibility:public"],
    deps = [":headers"],
)
""" % [
        flag
        for flag in _words(ctx, [pkg_config, "--libs", "python3-embed"])
        if flag.startswith("-l")
    ])

python_repository = repository_rule(
    doc = """The headers of Debian's Python, and the library for programs that contain Python.

An extension links nothing: it finds Python's functions in the program that loads it.""",
    implementation = _python_repository_impl,
    environ = ["PKG_CONFIG_PATH"],
    configure = True,
)
