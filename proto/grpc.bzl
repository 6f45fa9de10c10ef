"""C++ from .proto files, by the system's protoc and gRPC plugin."""

_Protos = provider(
    doc = "What a .proto file that imports these needs to be compiled.",
    fields = {"sources": "depset of .proto files, with all that they import"},
)

# Generated headers count as system headers, so that only our own code has to meet our warnings.
_GENERATE = """
set -e
"$@"
sed -i '1i #pragma GCC system_header' $HEADERS
"""

def _grpc_cc_sources_impl(ctx):
    sources = depset(
        ctx.files.srcs,
        transitive = [dep[_Protos].sources for dep in ctx.attr.deps],
    )
    package = ctx.label.package + "/"
    hdrs = []
    srcs = []
    for src in ctx.files.srcs:
        stem = src.short_path[len(package):-len(".proto")]
        hdrs += [ctx.actions.declare_file(stem + ext) for ext in [".pb.h", ".grpc.pb.h"]]
        srcs += [ctx.actions.declare_file(stem + ext) for ext in [".pb.cc", ".grpc.pb.cc"]]

    # Imports are written from the repository's root, the directory that actions run in.
    args = ctx.actions.args()
    args.add(ctx.executable._protoc)
    args.add("-I.")
    args.add(ctx.executable._plugin, format = "--plugin=protoc-gen-grpc=%s")
    args.add("--cpp_out=" + ctx.bin_dir.path)
    args.add("--grpc_out=" + ctx.bin_dir.path)
    args.add_all(ctx.files.srcs)
    ctx.actions.run_shell(
        command = _GENERATE,
        arguments = [args],
        env = {"HEADERS": " ".join([hdr.path for hdr in hdrs])},
        inputs = sources,
        tools = [ctx.executable._protoc, ctx.executable._plugin],
        outputs = hdrs + srcs,
        mnemonic = "GrpcCc",
        progress_message = "Generating C++ for %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(hdrs + srcs)),
        OutputGroupInfo(hdrs = depset(hdrs), srcs = depset(srcs)),
        _Protos(sources = sources),
    ]

_grpc_cc_sources = rule(
    implementation = _grpc_cc_sources_impl,
    attrs = {
        "deps": attr.label_list(providers = [_Protos]),
        "srcs": attr.label_list(allow_files = [".proto"], mandatory = True),
        "_plugin": attr.label(
            default = "@protobuf_tools//:grpc_cpp_plugin",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_protoc": attr.label(
            default = "@protobuf_tools//:protoc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
    },
)

def grpc_cc_library(name, srcs, deps = [], **kwargs):
    """The messages and services of .proto files as a cc_library.

    The files may import each other, those of deps and google/protobuf/*.proto.

    Args:
      name: the cc_library; headers are "<path of the .proto from the root>.pb.h" and ".grpc.pb.h".
      srcs: .proto files.
      deps: other grpc_cc_library targets whose files srcs import.
      **kwargs: as for cc_library.
    """
    native.cc_library(
        name = name,
        srcs = [name + "_srcs"],
        hdrs = [name + "_hdrs"],
        copts = ["-w"],
        deps = deps + ["@grpc"],
        **kwargs
    )
    _grpc_cc_sources(
        name = name + "_sources",
        srcs = srcs,
        # A cc_library cannot carry our provider: its sources' target, beside it, does.
        deps = [dep + "_sources" for dep in deps],
    )
    [
        native.filegroup(
            name = "%s_%s" % (name, group),
            srcs = [name + "_sources"],
            output_group = group,
        )
        for group in ["hdrs", "srcs"]
    ]
