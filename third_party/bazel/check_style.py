#!/usr/bin/env python3
"""check_style.py CHECKOUT [--write]: is the code as plain and as small as CONTRIBUTING.md asks for?

Counts, over the files that git knows:
  words      words of CONTRIBUTING.md's list in comments and in docs, per 1,000 lines of these
  sentences  sentences of more than 35 words there
  files      files of more than 400 lines
  folders    folders of more than 40 files
  classes    classes of more than 40 public functions
and compares each with its budget in style_budgets.json beside this script. A budget may only fall:
--write lowers it to what was counted, and never raises it.
"""
import collections
import json
import os
import re
import subprocess
import sys

WORDS = re.compile(
    r"\b(nobody|somebody|everybody|whoever|who has|what is|where it|its own|the other sort|"
    r"from here on)\b", re.I)
MAX_WORDS, MAX_LINES, MAX_FILES, MAX_FUNCTIONS = 35, 400, 40, 40
CODE = (".cc", ".h", ".py", ".proto", ".sh", ".bzl")
BUDGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "style_budgets.json")
# Generated, or a picture.
EXEMPT = ("deploy/grafana", "LICENSE")


def comments(path, text):
    """The comment blocks of a source, each as a list of lines."""
    mark = "//" if path.endswith((".cc", ".h", ".proto")) else "#"
    blocks, block = [], []
    for line in text.split("\n"):
        stripped = line.strip()
        found = re.match(re.escape(mark) + r"+\s?(.*)", stripped)
        if not found and mark == "//":
            found = re.search(r"\s//\s(.*)$", line)
        if found and not stripped.startswith("#!"):
            if not stripped.startswith(mark) and block:
                blocks.append(block)
                block = []
            block.append(found.group(1))
            continue
        if block:
            blocks.append(block)
            block = []
    if block:
        blocks.append(block)
    if path.endswith(".py"):
        for found in re.finditer(r'"""(.*?)"""', text, re.S):
            blocks.append(found.group(1).split("\n"))
    return blocks


def paragraphs(text):
    """The prose of a Markdown document: no code, no tables, no headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    blocks, block = [], []
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith(("#", "|", "<")):
            if block:
                blocks.append(block)
            block = []
            continue
        if re.match(r"\s*([-*]|\d+\.)\s", line) and block:
            blocks.append(block)
            block = []
        block.append(line.strip())
    if block:
        blocks.append(block)
    return blocks


def long_sentences(block):
    text = re.sub(r"`[^`]*`|\([^)]*\)", "X", " ".join(block))
    return sum(len(sentence.split()) > MAX_WORDS
               for sentence in re.split(r"(?<=[.!?])\s+|  +", text))


def public_functions(text):
    """{class: how many public functions it declares} of a header."""
    counts = {}
    text = re.sub(r"//[^\n]*", "", text)
    for start in re.finditer(r"^(class|struct)\s+(?:\w+\([^)]*\)\s+|[A-Z_]+\s+)*([\w:]+)[^;{]*\{", text,
                             re.M):
        depth, at = 1, start.end()
        public, count, line = start.group(1) == "struct", 0, ""
        while depth and at < len(text):
            char = text[at]
            if char == "{":
                if depth == 1:
                    line += "{"
                depth += 1
            elif char == "}":
                depth -= 1
                if depth == 1:
                    count += public and bool(re.search(r"\w\s*\(", line))
                    line = ""
            elif depth == 1:
                line += char
                if line.strip() in ("public:", "private:", "protected:"):
                    public, line = line.strip() == "public:", ""
                elif char == ";":
                    count += public and bool(re.search(r"\w\s*\(", line)) and "using" not in line
                    line = ""
            at += 1
        counts[start.group(2)] = count
    return counts


def measure(checkout):
    listed = subprocess.run(["git", "-C", checkout, "ls-files"], check=True, capture_output=True,
                            text=True).stdout.split("\n")
    words = lines = sentences = 0
    files, folders, classes = {}, collections.Counter(), {}
    for path in filter(None, listed):
        full = os.path.join(checkout, path)
        if path.startswith(EXEMPT) or not os.path.isfile(full) or os.path.islink(full):
            continue
        folders[os.path.dirname(path)] += 1
        is_doc = path.endswith(".md")
        if not is_doc and not path.endswith(CODE) and path != "run":
            continue
        with open(full, encoding="utf-8") as file:
            text = file.read()
        if not is_doc and text.count("\n") > MAX_LINES:
            files[path] = text.count("\n")
        for block in paragraphs(text) if is_doc else comments(path, text):
            lines += len(block)
            words += len(WORDS.findall(" ".join(block)))
            sentences += long_sentences(block)
        if path.endswith(".h"):
            for name, count in public_functions(text).items():
                if count > MAX_FUNCTIONS:
                    classes["%s: %s" % (path, name)] = count
    return {
        "words": round(1000 * words / lines, 1),
        "sentences": sentences,
        "files": files,
        "folders": {name: count for name, count in folders.items() if count > MAX_FILES},
        "classes": classes,
    }


def problems_of(measured, budgets):
    for name in ("words", "sentences"):
        if measured[name] > budgets[name]:
            yield "%s: %s, and the budget is %s" % (name, measured[name], budgets[name])
    for name in ("files", "folders", "classes"):
        for what, count in sorted(measured[name].items()):
            if count > budgets[name].get(what, 0):
                yield "%s: %s has %d, and the budget is %s" % (
                    name, what, count, budgets[name].get(what, "that of all others"))


def lowered(measured, budgets):
    return {
        name: min(value, budgets[name]) if not isinstance(value, dict) else
        {what: min(count, budgets[name][what]) for what, count in sorted(value.items())
         if what in budgets[name]}
        for name, value in measured.items()
    }


def main():
    measured = measure(sys.argv[1])
    with open(BUDGETS, encoding="utf-8") as file:
        budgets = json.load(file)
    problems = list(problems_of(measured, budgets))
    for problem in problems:
        print(problem)
    print("style: %(words)s listed words per 1,000 lines, %(sentences)d long sentences" % measured +
          ", %d long files, %d full folders, %d large classes" % (
              len(measured["files"]), len(measured["folders"]), len(measured["classes"])))
    if "--write" in sys.argv[2:]:
        with open(BUDGETS, "w", encoding="utf-8") as file:
            json.dump(lowered(measured, budgets), file, indent=2)
            file.write("\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
