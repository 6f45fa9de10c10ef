# SPDX-License-Identifier: Apache-2.0
"""A test whose program, with all that it is made of, is compiled with the faults of the core."""

def _with_mutants_impl(settings, _):
    copts = settings["//command_line_option:copt"]
    return {"//command_line_option:copt": copts + ["-DGPUMEM_MUTANTS"]}

_with_mutants = transition(
    implementation = _with_mutants_impl,
    inputs = ["//command_line_option:copt"],
    outputs = ["//command_line_option:copt"],
)

def _mutated_test_impl(ctx):
    program = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        output = program,
        target_file = ctx.executable.program,
        is_executable = True,
    )
    return DefaultInfo(
        executable = program,
        runfiles = ctx.attr.program[0][DefaultInfo].default_runfiles,
    )

mutated_test = rule(
    implementation = _mutated_test_impl,
    attrs = {
        "program": attr.label(cfg = _with_mutants, executable = True, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    test = True,
)
