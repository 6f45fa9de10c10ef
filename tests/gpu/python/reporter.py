# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that writes each event at once, so that a crash loses nothing: lines of JSON
in the file $GPUMEM_REPORT."""
import json
import os


def _say(**words):
    with open(os.environ["GPUMEM_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")


def pytest_runtest_logstart(nodeid):
    _say(test=nodeid, what="begins")


def pytest_collectreport(report):
    if report.failed:
        _say(test=report.nodeid, what="failed", why=str(report.longrepr)[-1500:])
    elif report.skipped:
        _say(test=report.nodeid, what="skipped", why=str(report.longrepr)[-300:])


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        why = "" if report.passed else str(report.longrepr)[-1500:]
        _say(test=report.nodeid, what=report.outcome, why=why, seconds=report.duration)
