# SPDX-License-Identifier: Apache-2.0
"""Units: the sources of a library that are compiled together (a "unity" or "jumbo" build).

Most of the time that a source takes to compile goes into headers and templates that the others of
its library need, too. Together they need it once.
"""

# More would leave cores of larger machines idle, and compile much again after a change.
_SOURCES_PER_UNIT = 12

# Messages of the compiler, debug information and compile_commands.py see the sources themselves.
# `sed` ends a last line that has no end: it would swallow the next source's #line.
_JOIN = """
unit=$1; shift
for source; do echo "#line 1 \\"$source\\""; sed '$a\\' "$source"; done >"$unit"
"""

SourcesInfo = provider(
    doc = "What units consist of.",
    fields = {"sources": "The sources, a list of files."},
)

def _units_impl(ctx):
    sources = ctx.files.srcs
    count = (len(sources) + _SOURCES_PER_UNIT - 1) // _SOURCES_PER_UNIT
    units = []
    for i in range(count):
        part = sources[i * len(sources) // count:(i + 1) * len(sources) // count]
        unit = ctx.actions.declare_file("%s_%d.cc" % (ctx.label.name, i))
        args = ctx.actions.args()
        args.add(unit)
        args.add_all(part)
        ctx.actions.run_shell(
            command = _JOIN,
            arguments = [args],
            inputs = part,
            outputs = [unit],
            mnemonic = "JoinSources",
            progress_message = "Joining sources of %s" % ctx.label,
        )
        units.append(unit)
    return [DefaultInfo(files = depset(units)), SourcesInfo(sources = sources)]

_units = rule(
    implementation = _units_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"], mandatory = True)},
)

def joined(name, srcs, testonly):
    """Returns the sources of target `name` with its .cc files replaced by units.

    Args:
      name: the target.
      srcs: its sources; private headers stay as they are.
      testonly: as of the target.
    """
    sources = [src for src in srcs if src.endswith(".cc")]
    if len(sources) < 2:
        return srcs
    _units(
        name = name + "_units",
        srcs = sources,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    return [":" + name + "_units"] + [src for src in srcs if src not in sources]
