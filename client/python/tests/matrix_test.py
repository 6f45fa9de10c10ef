# SPDX-License-Identifier: Apache-2.0
"""Each row of docs/python/matrix.md has a known status, and its tests make the calls it names."""
import ast
import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(os.environ["GPUMEM_ROOT"])
MATRIX = ROOT / "docs/python/matrix.md"
FOLDERS = (ROOT / "tests/gpu/python", ROOT / "client/python/tests")
STATUSES = {"works", "works, untested", "replaced", "succeeds, uncharged", "irrelevant",
            "fails in the framework"}
HELPERS = ("cuda_calls", "numba_calls", "support")


def rows():
    """Returns [(line, first cell, status, last cell)] of the tables of functions."""
    found = []
    for number, line in enumerate(MATRIX.read_text(encoding="utf-8").split("\n"), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and "`" in cells[0]:
            found.append((number, *cells))
    return found


def functions(module):
    """Returns {name: its syntax tree} of a module's functions; {} if there is no such module."""
    for folder in FOLDERS:
        path = folder / f"{module}.py"
        if path.exists():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
            # Code of children, which a test runs by its name.
            found.update({node.targets[0].id: node for node in tree.body
                          if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)})
            return found
    return {}


def words_of(test):
    """Returns the words in the code of "module::test" and of the helpers that it calls, without
    comments and docstrings; None if there is no such test."""
    module, name = test.split("::")
    known = {}
    for each in (*HELPERS, module):
        known.update(functions(each))
    if name not in known:
        return None
    words, seen, left = set(), set(), [name]
    while left:
        name = left.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        node = known[name]
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        mine = set(re.findall(r"\w+", ast.unparse(node)))
        words |= mine
        left += mine
    return words


def names_of(cell):
    """Returns the words of a row's functions that its tests have to contain. The class in "`Class`
    (`method`, …)" is not one: an object may come from a function."""
    found = set()
    for code in re.findall(r"`([^`]+)`(?! \()", cell):
        for part in re.findall(r"[\w.]+", code):
            last = part.split(".")[-1]
            if last not in ("True", "False", "None"):
                found.add(last)
    return found


def test_there_are_rows():
    assert len(rows()) > 100


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"line {row[0]}")
def test_a_row(row):
    _, functions_cell, status, last = row
    assert status in STATUSES
    tests = re.findall(r"`(\w+::\w+)`", last)
    words = set()
    for test in tests:
        of_test = words_of(test)
        assert of_test is not None, f"there is no {test}"
        words |= of_test
    if status == "works":
        assert tests, "a row that works names its test"
        assert not names_of(functions_cell) - words
    if status in ("replaced", "succeeds, uncharged"):
        assert last, "the row says what to do instead"
