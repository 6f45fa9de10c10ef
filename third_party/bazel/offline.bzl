# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the archives that Bazel's built-in WORKSPACE suffix would download.

Bazel 4 loads @rules_cc and @rules_java for its own tools, and asks for
@remote_coverage_tools as soon as there is a test. A C++ project needs no more
of them than the names of native rules, so that a few lines here make the build
independent of the network.
"""

def _native_rules(names):
    return "".join(["%s = native.%s\n" % (name, name) for name in names])

_FILES = {
    "rules_cc": {
        "BUILD.bazel": "",
        "cc/BUILD.bazel": "",
        "cc/defs.bzl": _native_rules([
            "cc_binary",
            "cc_import",
            "cc_library",
            "cc_test",
            "cc_toolchain",
            "cc_toolchain_suite",
        ]),
    },
    "rules_java": {
        "BUILD.bazel": "",
        "java/BUILD.bazel": "",
        "java/defs.bzl": _native_rules([
            "java_binary",
            "java_import",
            "java_library",
            "java_runtime",
            "java_toolchain",
        ]),
    },
    "remote_coverage_tools": {
        "BUILD.bazel": """
package(default_visibility = ["//visibility:public"])

[
    sh_binary(
        name = name,
        srcs = ["unavailable.sh"],
    )
    for name in ["coverage_report_generator", "lcov_merger"]
]
""",
        "unavailable.sh": "echo 'no coverage tools here' >&2; exit 1\n",
    },
}

def _offline_repository_impl(ctx):
    for path, content in _FILES[ctx.attr.stands_for].items():
        ctx.file(path, content)

_offline_repository = repository_rule(
    implementation = _offline_repository_impl,
    attrs = {"stands_for": attr.string(mandatory = True)},
)

def offline_repositories():
    for name in _FILES:
        _offline_repository(name = name, stands_for = name)
