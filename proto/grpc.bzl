# SPDX-License-Identifier: Apache-2.0
"""C++ from .proto files, by the system's protoc and gRPC plugin."""

# Generated headers count as system headers, so that only our own code has to meet our warnings.
_GENERATE = """
set -e
protoc=$1; plugin=$2; out=$3
"$protoc" -I. --cpp_out="$out" $SRCS
if [ -n "$SERVICES" ]; then
  "$protoc" -I. --plugin=protoc-gen-grpc="$plugin" --grpc_out="$out" $SERVICES
fi
sed -i '1i #pragma GCC system_header' $HEADERS
"""

def _paths(files):
    return " ".join([file.path for file in files])

def _declare(ctx, protos, extension):
    package = ctx.label.package + "/"
    return [
        ctx.actions.declare_file(proto.short_path[len(package):-len(".proto")] + extension)
        for proto in protos
    ]

def _grpc_cc_sources_impl(ctx):
    messages_hdrs = _declare(ctx, ctx.files.srcs, ".pb.h")
    messages_srcs = _declare(ctx, ctx.files.srcs, ".pb.cc")
    services_hdrs = _declare(ctx, ctx.files.services, ".grpc.pb.h")
    services_srcs = _declare(ctx, ctx.files.services, ".grpc.pb.cc")
    outputs = messages_hdrs + messages_srcs + services_hdrs + services_srcs

    # Imports are written from the repository's root, the directory that actions run in.
    ctx.actions.run_shell(
        command = _GENERATE,
        arguments = [ctx.executable._protoc.path, ctx.executable._plugin.path, ctx.bin_dir.path],
        env = {
            "HEADERS": _paths(messages_hdrs + services_hdrs),
            "SERVICES": _paths(ctx.files.services),
            "SRCS": _paths(ctx.files.srcs),
        },
        inputs = ctx.files.srcs,
        tools = [ctx.executable._protoc, ctx.executable._plugin],
        outputs = outputs,
        mnemonic = "GrpcCc",
        progress_message = "Generating C++ for %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(outputs)),
        OutputGroupInfo(
            messages_hdrs = depset(messages_hdrs),
            messages_srcs = depset(messages_srcs),
            services_hdrs = depset(services_hdrs),
            services_srcs = depset(services_srcs),
        ),
    ]

_grpc_cc_sources = rule(
    implementation = _grpc_cc_sources_impl,
    attrs = {
        "services": attr.label_list(allow_files = [".proto"]),
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

def grpc_cc_libraries(name, srcs, services = [], **kwargs):
    """cc_libraries of .proto files: `messages`, and, if there are any, `services`, which need gRPC.

    Args:
      name: of what generates their sources.
      srcs: .proto files. They may import each other and google/protobuf/*.proto. Headers are
        "<path of the .proto from the root>.pb.h" of messages, and ".grpc.pb.h" of services.
      services: those of srcs that define services.
      **kwargs: as for cc_library.
    """
    _grpc_cc_sources(name = name, srcs = srcs, services = services)
    _proto_cc_library("messages", ["@grpc//:protobuf"], name, **kwargs)
    if services:
        _proto_cc_library("services", [":messages", "@grpc"], name, **kwargs)
