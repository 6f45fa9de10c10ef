# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/python run, one after another, as they stand."""
import os
import re

import gpumem
import pytest

# Each page's examples are one program.
PAGES = {"docs/python/tutorial.md": 4, "docs/python/reference.md": 5}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(daemon, monkeypatch, page):
    monkeypatch.setenv("GPUMEM_RUNTIME_DIR", daemon.runtime_dir)
    daemon.ctl("quota", "set", "python", "--limit", "200MiB")
    root = os.environ["GPUMEM_ROOT"]
    with open(os.path.join(root, page), encoding="utf-8") as file:
        text = file.read()
    examples = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(examples) >= PAGES[page]
    scope = {}
    for example in examples:
        line = text.count("\n", 0, example.start()) + 2
        # As many lines before it, so that an error names the document's own.
        code = compile("\n" * (line - 1) + example.group(1), page, "exec")
        exec(code, scope)  # pylint: disable=exec-used
    scope["client"].close()
    gpumem.set_default_client(None)
