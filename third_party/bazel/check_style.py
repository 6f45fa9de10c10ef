#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_style.py CHECKOUT [--list] [--write]: is the code as plain and small as CONTRIBUTING.md asks?

Counts, over the files that git knows:
  words           words of CONTRIBUTING.md's list per 1,000 lines, in comments of code and in the
                  documents that PLAIN names
  sentences       sentences of more than 35 words there
  docs_words      the same of the other documents
  docs_sentences
  returns         comments that begin as CONTRIBUTING.md's first rule says, directly above a
                  function, per 1,000 lines of comments
  files           files of more than 400 lines, but for Bazel's lists of files
  folders         folders of more than 40 files
  classes         classes of more than 40 public functions
  unlicensed      sources without an SPDX line (which no other count sees)
and compares each with its budget in style_budgets.json beside this script. A budget may only fall,
and that of `returns` only rise: --write moves it to what was counted, and never the other way.
--list prints each word and each long sentence with its file.
"""
import ast
import collections
import io
import json
import math
import os
import re
import subprocess
import sys
import tokenize

WORDS = re.compile(
    r"\b(nobody|somebody|everybody|whoever|who has|what is|where it|its own|the other sort|"
    r"from here on)\b", re.I)
OPENINGS = re.compile(
    r"(Returns?|Requires|Releases|Blocks until|True if|Takes ownership)\b")
MAX_WORDS, MAX_LINES, MAX_FILES, MAX_FUNCTIONS = 35, 400, 40, 40
C_LIKE = (".cc", ".h", ".c", ".proto")
PYTHON = (".py", ".pyi")
CODE = C_LIKE + PYTHON + (".sh", ".bzl", ".bazel")
# Documents that are held to the same as comments.
PLAIN = ("CONTRIBUTING.md", "docs/design.md")
ITEM = re.compile(r"\s*([-*]|\d+\.|[A-Z_]{5,})\s|.*\S\s{2,}\S")
RISING = ("returns",)
LICENCE = re.compile(r"(//|#|/\*) SPDX-License-Identifier: ")
SOURCE = (".cc", ".c", ".h", ".proto", ".py", ".pyi", ".sh", ".bzl")
BUDGETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "style_budgets.json")
# Generated, or a picture.
EXEMPT = ("deploy/grafana", "LICENSE")
# CONTRIBUTING.md's rule has to name the words.
QUOTED_LIST = re.compile(r"\*nobody, [^*]*\*")


def comments(path, text):
    """Returns [(block, above)]: the comment blocks of a source, each a list of lines, and the code
    that follows it directly, "" for a comment beside code."""
    if path.endswith(PYTHON):
        return python_comments(text)
    return line_comments(path, text)


def line_comments(path, text):
    """Returns the same of a source whose comments begin with // or /* or #."""
    c_like = path.endswith(C_LIKE)
    mark = "//" if c_like else "#"
    if c_like:
        text = re.sub(r"^([ \t]*)/\*(.*?)\*/[ \t]*$", slashes, text, flags=re.S | re.M)
    blocks, block = [], []
    lines = text.split("\n")
    for at, line in enumerate(lines):
        stripped = line.strip()
        if stripped.startswith(mark) and not stripped.startswith("#!"):
            block.append(stripped.lstrip(mark[0]).strip())
            continue
        if block:
            blocks.append((block, "\n".join(lines[at:at + 6])))
            block = []
        beside = re.search(r"\s%s\s(.*)$" % mark, line)
        if beside:
            block.append(beside.group(1))
    if block:
        blocks.append((block, ""))
    return blocks


def slashes(found):
    """Returns a /* comment */ as lines that begin with //."""
    return "\n".join("%s// %s" % (found.group(1), line.strip().lstrip("*").strip())
                     for line in found.group(2).split("\n"))


def python_comments(text):
    """Returns the same of a Python source; docstrings are comments, other strings are not."""
    blocks, block, last = [], [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("#!"):
            continue
        beside = not token.line.lstrip().startswith("#")
        if block and (beside or token.start[0] != last + 1):
            blocks.append((block, ""))
            block = []
        block.append(token.string.lstrip("#").strip())
        last = token.start[0]
    if block:
        blocks.append((block, ""))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                blocks.append((docstring.split("\n"), "def " if is_function else ""))
    return blocks


def declares_function(path, code):
    """True if the code begins with the declaration or definition of a function."""
    if not code.split("\n")[0].strip():
        return False
    if path.endswith(PYTHON):
        return code.startswith("def ")
    if path.endswith((".sh", ".bzl", ".bazel", "run")):
        return bool(re.match(r"\s*(def \w+\(|\w+\(\) \{)", code))
    if path.endswith(".proto"):
        return bool(re.match(r"\s*rpc ", code))
    code = re.sub(r"^\s*(template <[^\n]*>|\[\[\w+\]\]|extern \"C\")\s+", "", code)
    found = re.match(r"(\s*)([\w:<>,&*\s]+?[\s&*])(~?[\w:]+|operator\W+)\(", code)
    if not found or found.group(2).count("<") != found.group(2).count(">"):
        return False
    if re.match(r"(return|else|case|new|delete|throw|co_\w+|using|typedef|class|enum)\b",
                found.group(2)):
        return False
    # A variable of a function body looks the same, but for its lower-case name.
    name = found.group(3).split("::")[-1]
    return not name[0].islower() or not found.group(1) or path.endswith(".h")


def paragraphs(text):
    """The prose of a Markdown document: no code, no hidden blocks, no tables, no headings."""
    text = re.sub(r"^```.*?^```|^<!--.*?-->", "", text, flags=re.S | re.M)
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
    """Returns the sentences of more than MAX_WORDS words. `code` is one word; an item of a list and
    a row of a table are sentences."""
    text = " ".join("  " + line if ITEM.match(line) else line for line in block)
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+|(?<=[.!?]\))\s+|\s{2,}", text)
            if len(sentence.split()) > MAX_WORDS]


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


class Prose:
    """Counts over comments, or over documents."""

    def __init__(self):
        self.lines = 0
        self.words, self.sentences = [], []  # (path, what)

    def add(self, path, block):
        self.lines += len(block)
        self.words += [(path, word) for word in WORDS.findall(" ".join(block))]
        self.sentences += [(path, sentence) for sentence in long_sentences(block)]

    def list(self):
        for path, word in self.words:
            print("%s: %s" % (path, word))
        for path, sentence in self.sentences:
            print("%s: %d words: %s" % (path, len(sentence.split()), sentence))


def per_thousand(count, lines):
    return round(1000 * count / max(lines, 1), 1)


def measure(checkout):
    """Returns the counts by their names, and the words and sentences: of comments, of documents."""
    listed = subprocess.run(["git", "-C", checkout, "ls-files"], check=True, capture_output=True,
                            text=True).stdout.split("\n")
    plain, docs = Prose(), Prose()
    comment_lines = returns = 0
    files, folders, classes, unlicensed = {}, collections.Counter(), {}, {}
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
        licensed = [line for line in text.split("\n") if not LICENCE.match(line)]
        if path.endswith(SOURCE) and text and len(licensed) == text.count("\n") + 1:
            unlicensed[path] = 1
        text = "\n".join(licensed)
        if is_doc:
            for block in paragraphs(QUOTED_LIST.sub("", text)):
                (plain if path in PLAIN else docs).add(path, block)
            continue
        if text.count("\n") > MAX_LINES and not path.endswith(".bazel"):
            files[path] = text.count("\n")
        for block, code in comments(path, text):
            plain.add(path, block)
            comment_lines += len(block)
            returns += bool(OPENINGS.match(block[0])) and declares_function(path, code)
        if path.endswith(".h"):
            for name, count in public_functions(text).items():
                if count > MAX_FUNCTIONS:
                    classes["%s: %s" % (path, name)] = count
    return {
        "words": per_thousand(len(plain.words), plain.lines),
        "sentences": len(plain.sentences),
        "docs_words": per_thousand(len(docs.words), docs.lines),
        "docs_sentences": len(docs.sentences),
        "returns": per_thousand(returns, comment_lines),
        "files": files,
        "folders": {name: count for name, count in folders.items() if count > MAX_FILES},
        "classes": classes,
        "unlicensed": unlicensed,
    }, (plain, docs)


def problems_of(measured, budgets):
    """Yields a line for each count that is on the wrong side of its budget."""
    for name, value in measured.items():
        if isinstance(value, dict):
            for what, count in sorted(value.items()):
                if count > budgets[name].get(what, 0):
                    yield "%s: %s has %d, and the budget is %s" % (
                        name, what, count, budgets[name].get(what, "that of all others"))
        elif value < budgets[name] if name in RISING else value > budgets[name]:
            yield "%s: %s, and the budget is %s" % (name, value, budgets[name])


def moved(measured, budgets):
    """Returns the budgets, each moved to what was measured if it may move that way."""
    return {
        name: {what: min(count, budgets[name][what]) for what, count in sorted(value.items())
               if what in budgets[name]} if isinstance(value, dict) else
        max(math.floor(value), budgets[name]) if name in RISING else min(value, budgets[name])
        for name, value in measured.items()
    }


def main():
    measured, proses = measure(sys.argv[1])
    with open(BUDGETS, encoding="utf-8") as file:
        budgets = json.load(file)
    problems = list(problems_of(measured, budgets))
    for problem in problems:
        print(problem)
    if "--list" in sys.argv[2:]:
        for prose in proses:
            prose.list()
    print("style: per 1,000 lines %(words)s listed words, in documents %(docs_words)s, and "
          "%(returns)s comments of functions; %(sentences)d long sentences, in documents "
          "%(docs_sentences)d" % measured + "; %d long files, %d full folders, %d large classes" % (
              len(measured["files"]), len(measured["folders"]), len(measured["classes"])))
    if "--write" in sys.argv[2:]:
        budgets.setdefault("unlicensed", {})
        with open(BUDGETS, "w", encoding="utf-8") as file:
            json.dump(moved(measured, budgets), file, indent=2)
            file.write("\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
