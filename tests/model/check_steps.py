#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_steps.py [ROOT]: the model's steps are the code's.

Comments of the model name functions, and the order of what they do:

  // step: FUNCTION (PATH)                       PATH has to define FUNCTION
  // order: FUNCTION (PATH): TEXT < TEXT < TEXT  its body has these texts; each begins first there
                                                 after the one before it

Of an overloaded function one definition has to have that order. Comments of the source do not count.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


# Indentation and name of a function. From its result to the brace at the indentation of its beginning.
DEFINITION = (r"^(?=( *))(%s(?:[\w:<>,&*~ ]*[ &*])?(?<![\w:~])%s\([^;{]*\{"
              r"(?:[^\n]*\}$|.*?^\1\};?$))")


def without_comments(source):
    return re.sub(r"//[^\n]*", "", source)


def bodies(source, function):
    """The bodies of all definitions of a function, as text: at the margin, or inside its class."""
    parts = function.split("::")
    for begin in range(len(parts)):
        owner = re.escape(parts[begin - 1]) if begin else None
        if owner and not re.search(r"(class|struct) [\w:]*\b%s\b" % owner, source):
            continue
        indent = " +" if owner and begin == len(parts) - 1 else ""
        found = re.findall(DEFINITION % (indent, re.escape("::".join(parts[begin:]))), source, re.M | re.S)
        if found:
            return [body for _, body in found]
    return []


def wrong_order(body, texts):
    """Says how the order of texts in a body is wrong; nothing if it is right."""
    body = body.partition("{")[2]
    at = -1
    for text in texts:
        first = body.find(text)
        if first < 0:
            return "it has no `%s`" % text
        if first <= at:
            return "`%s` comes too early" % text
        at = first
    return ""


def marks(path):
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if re.match(r"\s*// (step|order):", line):
                mark = re.match(r"\s*// (step|order): (\S+) \(([\w/.]+)\)(?:: (.*))?$", line.rstrip())
                yield number, mark


def check(root, model):
    """Sentences about marks that the source does not fit."""
    wrong = []
    count = 0
    for number, mark in marks(model):
        place = "%s:%d" % (os.path.basename(model), number)
        if mark is None or (mark.group(1) == "order") != (mark.group(4) is not None):
            wrong.append("%s: neither `step: FUNCTION (PATH)` nor `order: FUNCTION (PATH): A < B`" % place)
            continue
        count += 1
        function, path, order = mark.group(2), mark.group(3), mark.group(4)
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                source = without_comments(file.read())
        except FileNotFoundError:
            wrong.append("%s: there is no %s" % (place, path))
            continue
        defined = bodies(source, function)
        if not defined:
            wrong.append("%s: %s does not define %s" % (place, path, function))
        elif order is not None:
            faults = [wrong_order(body, order.split(" < ")) for body in defined]
            if all(faults):
                wrong.append("%s: %s (%s): %s" % (place, function, path, faults[0]))
    return wrong, count


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    models = sorted(name for name in os.listdir(HERE) if name.endswith(".pml"))
    wrong, count = [], 0
    for name in models:
        some, checked = check(root, os.path.join(HERE, name))
        wrong += some
        count += checked
    for sentence in wrong:
        print(sentence)
    print("%d marks, %d wrong" % (count, len(wrong)))
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
