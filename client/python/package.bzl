# SPDX-License-Identifier: Apache-2.0
"""How the Python package is put together."""

def gpumem_python_extension(name, library, deps, **kwargs):
    """An extension of Python, which finds libgpumem.so in lib/ beside it.

    Args:
      name: the file's name.
      library: libgpumem.so by the name that it is loaded by.
      deps: what it is made of.
      **kwargs: as for cc_binary.
    """
    native.cc_binary(
        name = name,
        linkshared = True,
        additional_linker_inputs = [library],
        linkopts = [
            # gold 1.16 loses the name of one of several thread-local variables, which are local to
            # their files, and the one then lies where another does.
            "-fuse-ld=bfd",
            "$(location %s)" % library,
            "-Wl,-rpath,$$ORIGIN/lib",
            # Python calls this and nothing else.
            "-Wl,--version-script=$(location //client/python:extension.lds)",
        ],
        deps = deps + ["//client/python:extension.lds"],
        **kwargs
    )

def _python_package_impl(ctx):
    placed = [
        (file, file.short_path[len(ctx.label.package) + 1:])
        for file in ctx.files.srcs
    ] + [
        (ctx.file.extension, "gpumem/" + ctx.file.extension.basename),
        (ctx.file.library, "gpumem/lib/" + ctx.file.library.basename),
    ]
    outs = []
    for file, path in placed:
        out = ctx.actions.declare_file(ctx.label.name + "/" + path)

        # Copied: a program that looks beside a link finds the files beside its target.
        ctx.actions.run_shell(
            inputs = [file],
            outputs = [out],
            command = 'cp "$1" "$2"',
            arguments = [file.path, out.path],
        )
        outs.append(out)
    return [DefaultInfo(files = depset(outs), runfiles = ctx.runfiles(files = outs))]

python_package = rule(
    doc = "The folder of the package, ready to be imported.",
    implementation = _python_package_impl,
    attrs = {
        "extension": attr.label(allow_single_file = True),
        "library": attr.label(allow_single_file = True),
        "srcs": attr.label_list(allow_files = True),
    },
)

def gpumem_python_test(name, size = "medium", data = [], **kwargs):
    """The pytest cases of name.py, against real daemons."""
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//client/python/tests:run_pytest.sh"],
        args = ["%s/%s.py" % (native.package_name(), name)],
        data = data + [
            name + ".py",
            "//client/cli:gpumemctl",
            "//:LICENSE",
            "//client/python:README.md",
            "//client/python:make_wheel.sh",
            "//client/python:site",
            "//client/python/tests:conftest.py",
            "//daemon:gpumemd",
            "//daemon/keeper:gpumem-keeper",
        ],
        env = {
            "GPUMEM_GPUMEMCTL": "$(rootpath //client/cli:gpumemctl)",
            "GPUMEM_GPUMEMD": "$(rootpath //daemon:gpumemd)",
            "GPUMEM_MAKE_WHEEL": "client/python/make_wheel.sh",
            "GPUMEM_KEEPER": "$(rootpath //daemon/keeper:gpumem-keeper)",
        },
        # Under ThreadSanitizer neither Python nor its threads are instrumented (.bazelrc).
        tags = ["no-tsan"],
        **kwargs
    )
