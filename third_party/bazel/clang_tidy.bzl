# SPDX-License-Identifier: Apache-2.0
"""bazel build --config=tidy //... : clang-tidy over our own sources, its findings as errors."""

load(":units.bzl", "SourcesInfo")

# In place of the build's flags, which are meant for gcc.
_FLAGS = ["-xc++", "-std=c++20", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]

# The report is a stamp: empty, or the build fails and shows clang-tidy's output.
_COMMAND = """
report=$1; shift
clang-tidy --quiet "$@" >"$report" 2>/dev/null || { sed "s|$PWD/||g" "$report"; exit 1; }
"""

def _clang_tidy_aspect_impl(target, ctx):
    if CcInfo not in target or ctx.label.workspace_root:
        return []
    context = target[CcInfo].compilation_context

    flags = ctx.actions.args()
    flags.add("--")
    flags.add_all(_FLAGS)
    flags.add_all(context.defines, before_each = "-D")
    flags.add_all(context.quote_includes, before_each = "-iquote")
    flags.add_all(context.includes, before_each = "-I")
    flags.add_all(context.system_includes, before_each = "-isystem")

    reports = []
    srcs = []
    for attr in getattr(ctx.rule.attr, "srcs", []):
        # Each source by itself: it has to include what it uses.
        srcs += attr[SourcesInfo].sources if SourcesInfo in attr else attr.files.to_list()
    for src in srcs:
        if src.extension != "cc" or not src.is_source:
            continue
        report = ctx.actions.declare_file("%s.%s.tidy" % (ctx.label.name, src.short_path.replace("/", "_")))
        what = ctx.actions.args()
        what.add(report)
        what.add(src)
        ctx.actions.run_shell(
            command = _COMMAND,
            arguments = [what, flags],
            inputs = depset([src, ctx.file._config], transitive = [context.headers]),
            outputs = [report],
            mnemonic = "ClangTidy",
            progress_message = "Running clang-tidy on %s" % src.short_path,
            use_default_shell_env = True,
        )
        reports.append(report)
    return [OutputGroupInfo(clang_tidy = depset(reports))]

clang_tidy_aspect = aspect(
    implementation = _clang_tidy_aspect_impl,
    attrs = {"_config": attr.label(default = "//:.clang-tidy", allow_single_file = True)},
)
