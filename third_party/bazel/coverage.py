#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py CHECKOUT EXECROOT PROFDATA UNCOVERED PROGRAMS...: `./run coverage` calls it.

Prints a table of lines and branches by file. A branch is an outcome of a condition in the source: in
`if (a && b)` there are four. A case of a switch is one branch. Instances of a template are one
function. These are not counted:
- conditions that the compiler knows, and values that no case of a switch has
- conditions of faults that only the mutation check makes (daemon/core/mutant.h)
- macros and headers of others
- checks of invariants (CHECKS), which only an error of ours can fail
- code of tests

The file UNCOVERED says how much must be covered, and lists each branch that need not be. The status
is 1 if less is covered, if a branch is neither covered nor listed, or if a listed one is covered or
gone. A branch that a race of threads reaches in some runs only, by its reason, may be covered.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys

FOLDERS = ("daemon/core", "client/pool")
TESTS = re.compile(r"_test\.cc$|_fuzz\.cc$|/testing/")
# Functions whose failures a test cannot cause without an error in the code.
CHECKS = re.compile(r"(^|/)(\w+_)?invariants\.cc$")
CHECK_FUNCTION = re.compile(r"(^|::)CheckInvariants$")
# The text before a condition that is evaluated only if a fault is to be made. In a program without
# faults that is never.
OF_FAULT = re.compile(r"(?<!!)\bMutant\(Fault::\w+\) && $")
NO_CONDITION = "function"

# A function that is never called is one item, with NO_CONDITION; its branches are not listed.
Item = collections.namedtuple("Item", "path function condition outcome")


class Sources:
    """The sources behind the files that the compiler saw: units (units.bzl) have several."""

    def __init__(self, checkout, execroot):
        self.checkout = checkout
        self.execroot = execroot
        self.lines = {}  # by path
        self.units = {}  # by the compiler's file: its lines' paths and numbers

    def text(self, path):
        if path not in self.lines:
            root = self.execroot if path.startswith("bazel-out/") else self.checkout
            with open(os.path.join(root, path), encoding="utf-8") as file:
                self.lines[path] = file.read().split("\n")
        return self.lines[path]

    def place(self, file, line):
        """Returns the path and number of a line, or None if it is not counted."""
        path = file.removeprefix("/proc/self/cwd/")  # of the compiler, in a sandbox
        if path.startswith("bazel-out/") and re.search(r"_units_\d+\.cc$", path):
            if path not in self.units:
                self.units[path] = self.unit(path)
            path, line = self.units[path][line]
        if not path.startswith(tuple(folder + "/" for folder in FOLDERS)) or TESTS.search(path):
            return None
        return path, line

    def unit(self, path):
        places, source, number = [None], None, 0
        for line in self.text(path):
            marked = re.match(r'#line 1 "(.*)"$', line)
            if marked:
                source, number = marked.group(1), 0
            places.append((source, number))
            number += 1
        return places

    def span(self, path, start, end):
        """Returns the text from the line and column to the other, with single spaces."""
        (first, left), (last, right) = start, end
        lines = self.text(path)[first - 1:last]
        lines[-1] = lines[-1][:right - 1]
        lines[0] = lines[0][left - 1:]
        return " ".join(" ".join(lines).split())


def export(options, *arguments):
    command = ["llvm-cov-14", "export", "-instr-profile=" + options.profdata, *arguments]
    command.append(options.programs[0])
    command += ["-object=" + program for program in options.programs[1:]]
    # What it says of functions with other data is about inline ones that a program does not use.
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout


def short(name):
    """Returns the name of a function without namespaces, parameters and arguments of templates."""
    name = name.replace("(anonymous namespace)::", "").replace("operator()", "call")
    while (plain := re.sub(r"<[^<>]*>|\([^()]*\)( const)?", "", name)) != name:
        name = plain
    name = re.sub(r"::'?lambda.*|::\$_\d+.*", "", name).split(" ")[-1]
    return "::".join(name.split("::")[-2:])


def names_of(mangled):
    text = subprocess.run(["llvm-cxxfilt-14"], input="\n".join(mangled), check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return dict(zip(mangled, map(short, text.split("\n"))))


class Coverage:
    def __init__(self, options):
        self.sources = Sources(options.checkout, options.execroot)
        self.branches = collections.Counter()  # by (path, start, end, outcome)
        self.calls = collections.Counter()  # by (path, line, column)
        self.owner = {}  # a branch's function
        self.names = {}
        self.lines = collections.Counter()  # by (path, line)
        functions = json.loads(export(options))["data"][0]["functions"]
        names = names_of([function["name"].split(":")[-1] for function in functions])
        for function in functions:
            self.add(function, names[function["name"].split(":")[-1]])
        self.add_lines(export(options, "-format=lcov"))

    def add(self, function, name):
        files = function["filenames"]
        line, column = function["regions"][0][:2]
        place = self.sources.place(files[function["regions"][0][5]], line)
        if not place:
            return
        if CHECKS.search(place[0]) or CHECK_FUNCTION.search(name):
            return
        key = (*place, column)
        self.calls[key] += function["count"]
        self.names[key] = name
        for line, left, last, right, taken, other, file, _, _ in function["branches"]:
            start = self.sources.place(files[file], line)
            if not start:
                continue
            path, first = start
            span = ((first, left), (first + last - line, right))
            before = self.sources.text(path)[first - 1][:left - 1]
            if re.search(r"\bswitch \($", before) or OF_FAULT.search(before):
                continue
            outcomes = {"true": taken, "false": other}
            if re.match(r"case\b|default\b", self.sources.span(path, *span)):
                outcomes = {"taken": taken}
            for outcome, count in outcomes.items():
                branch = (path, *span, outcome)
                self.branches[branch] += count
                self.owner[branch] = key

    def add_lines(self, lcov):
        for line in lcov.split("\n"):
            kind, _, value = line.partition(":")
            if kind == "SF":
                file = value
            elif kind == "DA":
                number, count = value.split(",")[:2]
                place = self.sources.place(file, int(number))
                if place and not CHECKS.search(place[0]):
                    self.lines[place] += int(count)

    def items(self):
        """Returns all branches and functions."""
        for (path, line, column) in self.calls:
            yield Item(path, self.names[path, line, column], NO_CONDITION, "called")
        for path, start, end, outcome in self.branches:
            name = self.names[self.owner[path, start, end, outcome]]
            yield Item(path, name, self.sources.span(path, start, end), outcome)

    def uncovered(self):
        """Returns the items in the order of the sources, with their places."""
        items = []
        for (path, line, column), count in self.calls.items():
            if count == 0:
                name = self.names[path, line, column]
                items.append((path, (line, column), Item(path, name, NO_CONDITION, "called")))
        for branch, count in self.branches.items():
            path, start, end, outcome = branch
            if count == 0 and self.calls[self.owner[branch]]:
                condition = self.sources.span(path, start, end)
                items.append((path, start, Item(path, self.names[self.owner[branch]], condition,
                                                outcome)))
        return sorted(items)


def read_list(path):
    """Returns the items of the file, those of them that may be covered, and the least percentage.

    Its lines are PATH | FUNCTION | CONDITION | OUTCOME | REASON, and one is "least NUMBER". Items
    whose reason begins with "race:" may be covered.
    """
    listed, races, least = collections.Counter(), collections.Counter(), None
    with open(path, encoding="utf-8") as file:
        for line in file:
            number = re.match(r"least ([\d.]+)$", line)
            if number:
                least = float(number[1])
            elif line.strip() and not line.startswith("#"):
                *item, reason = (part.strip() for part in line.split(" | "))
                if len(item) != 4 or not reason:
                    sys.exit("coverage: not PATH | FUNCTION | CONDITION | OUTCOME | REASON: " +
                             line)
                listed[Item(*item)] += 1
                races[Item(*item)] += reason.startswith("race:")
    return listed, races, least


def count_by_file(counter):
    total, covered = collections.Counter(), collections.Counter()
    for (path, *_), count in counter.items():
        parts = path.split("/")
        for name in (path, "/".join(parts[:2]), "total"):
            total[name] += 1
            covered[name] += count > 0
    return covered, total


def table(coverage):
    lines, branches = count_by_file(coverage.lines), count_by_file(coverage.branches)

    def cell(counts, name):
        covered, total = counts[0][name], counts[1][name]
        return "%6d/%-6d %6.1f%%" % (covered, total, 100.0 * covered / total if total else 100)

    names = sorted({path for path, _ in coverage.lines}) + list(FOLDERS) + ["total"]
    print("%-52s %21s  %21s" % ("", "lines", "branches"))
    for name in names:
        print("%-52s %s  %s" % (name, cell(lines, name), cell(branches, name)))
    return 100.0 * branches[0]["total"] / branches[1]["total"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("checkout", "execroot", "profdata", "uncovered"):
        parser.add_argument(name)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()

    coverage = Coverage(options)
    reviewed, races, least = read_list(options.uncovered)
    listed = reviewed.copy()
    percent = table(coverage)
    missing = 0
    for path, (line, _), item in coverage.uncovered():
        if listed[item]:
            listed[item] -= 1
            continue
        missing += 1
        print("%s:%d: neither covered nor listed: %s" % (path, line, " | ".join(item)))
    # What a race may cover still has to be there.
    there = collections.Counter(coverage.items())
    stale = list((listed - (races & there)).elements())
    for item in stale:
        print("coverage: listed, but covered or gone: " + " | ".join(item))
    print("coverage: %d branches and functions are listed in %s, %d are not and are not covered" % (
        len(list(reviewed.elements())), options.uncovered, missing))
    print("coverage: %.1f%% of the branches are covered; it must be %.1f%%" % (percent, least))
    sys.exit(1 if percent < least or stale or missing else 0)


if __name__ == "__main__":
    main()
