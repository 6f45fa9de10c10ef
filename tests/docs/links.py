# SPDX-License-Identifier: Apache-2.0
"""Checks a document's links to other files of the checkout: the file exists, and so does the heading."""

import os
import re


def links_of(path):
    """Yields (where, target) of each link and picture that names no other machine."""
    with open(path, encoding="utf-8") as file:
        text = blanked(file.read())
    for match in re.finditer(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", match[1]):
            yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}", match[1]


def blanked(text):
    """Returns the text without its fenced blocks, comments and inline code; lines keep their numbers."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    return re.sub(r"^\s*```.*?^\s*```$|<!--.*?-->|`[^`\n]*`", blank, text, flags=re.M | re.S)


def anchors_of(path):
    """Returns the names that GitHub gives the headings of a document."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^\s*```.*?^\s*```$", "", file.read(), flags=re.M | re.S)
    anchors = set()
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name if not number else f"{name}-{number}") in anchors:
            number += 1
        anchors.add(name if not number else f"{name}-{number}")
    return anchors


def broken_links(path):
    """Yields a sentence for each link that leads nowhere."""
    for where, target in links_of(path):
        name, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not os.path.exists(file):
            yield f"{where}: there is no {file}"
        elif anchor and (not name or file.endswith(".md")) and anchor not in anchors_of(file):
            yield f"{where}: {file} has no heading #{anchor}"
