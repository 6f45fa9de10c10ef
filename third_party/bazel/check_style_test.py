#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What check_style.py counts as a comment, a long sentence and a function's comment."""
import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_style  # pylint: disable=wrong-import-position

LONG = " ".join(["word"] * 36) + "."


def blocks(path, text):
    return [block for block, _ in check_style.comments(path, text)]


def counted(path, text):
    """Returns how many comments of the source count as `returns`."""
    return sum(bool(check_style.OPENINGS.match(block[0])) and
               check_style.declares_function(path, code)
               for block, code in check_style.comments(path, text))


class Comments(unittest.TestCase):
    def test_of_cpp(self):
        self.assertEqual(blocks("a.h", "// one\n// two\nint x;  // three\n"),
                         [["one", "two"], ["three"]])
        self.assertEqual(blocks("a.h", "/* one\n * two */\nint x;\n"), [["one", "two"]])

    def test_of_python(self):
        self.assertEqual(blocks("a.py", '"""one"""\nx = "# two"  # three\ny = 1  # four\n# five\n'),
                         [["three"], ["four", "five"], ["one"]])
        self.assertEqual(blocks("a.py", 'x = """\n# nobody\n"""\n'), [])

    def test_of_a_build_file(self):
        self.assertEqual(blocks("BUILD.bazel", "# one\nx = 1  # two\n"), [["one"], ["two"]])


class Sentences(unittest.TestCase):
    def test_length(self):
        self.assertEqual(check_style.long_sentences([LONG]), [LONG])
        self.assertEqual(check_style.long_sentences(["`a b`", LONG[len("word word "):]]), [])
        self.assertEqual(len(check_style.long_sentences(["word (" + LONG[:-1] + ")."])), 1)

    def test_items_are_sentences(self):
        half = " ".join(["word"] * 20)
        self.assertEqual(check_style.long_sentences(["- " + half, "- " + half]), [])
        self.assertEqual(check_style.long_sentences(["NAME   " + half, "OTHER  " + half]), [])
        self.assertEqual(len(check_style.long_sentences(["- " + half, half])), 1)


class Returns(unittest.TestCase):
    def test_above_a_function(self):
        for code in ("int Size() const;", "static absl::StatusOr<std::vector<int>> Find(int id);",
                     "template <typename T>\nT Get();", "[[nodiscard]] bool Take(\n    int id);",
                     "  std::string* name() { return &name_; }"):
            self.assertEqual(counted("a.h", "// Returns it.\n" + code + "\n"), 1, code)
        self.assertEqual(counted("a.py", 'def f():\n    """Returns it."""\n'), 1)
        self.assertEqual(counted("a.proto", "// Returns it.\nrpc Get(A) returns (B);\n"), 1)

    def test_elsewhere(self):
        for code in ("\nint Size() const;", "int size = 0;", "std::function<int(int)> find;",
                     "  return Find(id);", "class Size;", "  absl::MutexLock lock(&mutex_);"):
            self.assertEqual(counted("a.cc", "// Returns it.\n" + code + "\n"), 0, code)
        self.assertEqual(counted("a.h", "int Size();  // Returns it.\n"), 0)
        self.assertEqual(counted("a.h", "// The size. Returns it.\nint Size();\n"), 0)
        self.assertEqual(counted("a.py", '"""Returns it."""\n'), 0)


class Budgets(unittest.TestCase):
    budgets = {"words": 2.0, "returns": 30.0, "files": {"a.cc": 500, "b.cc": 500}}

    def test_problems(self):
        self.assertEqual(list(check_style.problems_of(self.budgets, self.budgets)), [])
        worse = {"words": 2.1, "returns": 29.9, "files": {"a.cc": 501, "c.cc": 401}}
        self.assertEqual(len(list(check_style.problems_of(worse, self.budgets))), 4)

    def test_moves_one_way_only(self):
        self.assertEqual(
            check_style.moved({"words": 1.0, "returns": 31.9, "files": {"a.cc": 450}},
                              self.budgets),
            {"words": 1.0, "returns": 31, "files": {"a.cc": 450}})
        self.assertEqual(
            check_style.moved({"words": 3.0, "returns": 1.0, "files": {"a.cc": 600, "c.cc": 401}},
                              self.budgets),
            {"words": 2.0, "returns": 30.0, "files": {"a.cc": 500}})


if __name__ == "__main__":
    unittest.main()
