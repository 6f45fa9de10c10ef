# SPDX-License-Identifier: Apache-2.0
"""C++ from .proto files, by the system's protoc and gRPC plugin."""

# Generated headers count as system headers, so that only our own code has to meet our warnings.
_GENERATE = """
set -e
"$@"
sed -i '1i #pragma GCC system_header' $HEADERS
"""

def _grpc_cc_sources_impl(ctx):
    package = ctx.label.package + "/"
    files = {".pb.h": [], ".pb.cc": [], ".grpc.pb.h": [], ".grpc.pb.cc": []}
    for src in ctx.files.srcs:
        stem = src.short_path[len(package):-len(".proto")]
        for extension in files:
            files[extension].append(ctx.actions.declare_file(stem + extension))
    outputs = [file for group in files.values() for file in group]

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
        env = {"HEADERS": " ".join([
            hdr.path
            for hdr in files[".pb.h"] + files[".grpc.pb.h"]
        ])},
        inputs = ctx.files.srcs,
        tools = [ctx.executable._protoc, ctx.executable._plugin],
        outputs = outputs,
        mnemonic = "GrpcCc",
        progress_message = "Generating C++ for %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(outputs)),
        OutputGroupInfo(
            messages_hdrs = depset(files[".pb.h"]),
            messages_srcs = depset(files[".pb.cc"]),
            services_hdrs = depset(files[".grpc.pb.h"]),
            services_srcs = depset(files[".grpc.pb.cc"]),
        ),
    ]

_grpc_cc_sources = rule(
    implementation = _grpc_cc_sources_impl,
    attrs = {
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

def _proto_cc_library(name, deps, sources, **kwargs):
    for group in ["hdrs", "srcs"]:
        native.filegroup(
            name = "%s_%s" % (name, group),
            srcs = [sources],
            output_group = "%s_%s" % (name, group),
        )
    native.cc_library(
        name = name,
        srcs = [name + "_srcs"],
        hdrs = [name + "_hdrs"],
        copts = ["-w"],
        deps = deps,
        **kwargs
    )

def grpc_cc_libraries(name, srcs, **kwargs):
    """Two cc_libraries of .proto files: `messages`, and `services`, which need gRPC.

    Args:
      name: of what generates their sources.
      srcs: .proto files. They may import each other and google/protobuf/*.proto. Headers are
        "<path of the .proto from the root>.pb.h" of messages, and ".grpc.pb.h" of services.
      **kwargs: as for cc_library.
    """
    _grpc_cc_sources(name = name, srcs = srcs)
    _proto_cc_library("messages", ["@grpc//:protobuf"], name, **kwargs)
    _proto_cc_library("services", [":messages", "@grpc"], name, **kwargs)
