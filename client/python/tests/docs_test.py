# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/python.md run, one after another, as they stand."""
import os
import re

import gpumem

DOCS = "docs/python.md"


def test_the_examples_run(daemon, monkeypatch):
    monkeypatch.setenv("GPUMEM_RUNTIME_DIR", daemon.runtime_dir)
    daemon.ctl("quota", "set", "python", "--limit", "200MiB")
    root = os.environ["GPUMEM_ROOT"]
    with open(os.path.join(root, DOCS), encoding="utf-8") as file:
        text = file.read()
    examples = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(examples) >= 8
    scope = {}
    for example in examples:
        line = text.count("\n", 0, example.start()) + 2
        # As many lines before it, so that an error names the document's own.
        code = compile("\n" * (line - 1) + example.group(1), DOCS, "exec")
        exec(code, scope)  # pylint: disable=exec-used
    scope["client"].close()
    gpumem.set_default_client(None)
