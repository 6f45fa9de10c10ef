#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test_summary.py EVENTS STATUS: the results of `bazel test --build_event_json_file=EVENTS`, in
cases.

Prints the cases that failed, why others were skipped, and as its last line "N passed, N failed".
A target that could not be built, test or not, and a test that died or hung before it could report
count as one failed case; the case that it was at is named. Exits with STATUS, Bazel's own, or 1
if that is 0 but not all is well.
"""
import collections
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ET

GOOD = ("PASSED", "FLAKY")


def read_events(path):
    """The status of each test and each broken target; the last report of each run and shard."""
    targets = {}
    reports = collections.defaultdict(dict)
    logs = {}
    with open(path) as events:
        for event in map(json.loads, events):
            kind, key = next(iter(event["id"].items()))
            if kind == "targetConfigured" and event.get("configured", {}).get("testSize"):
                targets[key["label"]] = "NOT BUILT"  # unless a summary follows
            elif kind == "targetCompleted" and not event.get("completed", {}).get("success"):
                targets[key["label"]] = "NOT BUILT"
            elif kind == "testSummary":
                targets[key["label"]] = event["testSummary"]["overallStatus"]
            elif kind == "testResult":
                for out in event.get("testResult", {}).get("testActionOutput", []):
                    path = urllib.parse.unquote(urllib.parse.urlparse(out.get("uri", "")).path)
                    if out["name"] == "test.xml":
                        reports[key["label"]][key.get("run"), key.get("shard")] = path
                    elif out["name"] == "test.log":
                        logs[key["label"]] = path
    return targets, reports, logs


def read_report(path):
    """(name, outcome, reason) of each case in a test.xml."""
    try:
        cases = ET.parse(path).iter("testcase")
    except (ET.ParseError, OSError):
        return  # the target's status tells
    for case in cases:
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield name, "failed", ""
        elif case.get("status") == "notrun":
            yield name, "skipped", "disabled"
        elif case.get("result") == "skipped" or skipped is not None:
            # GoogleTest puts the place first, on a separate line.
            message = (skipped.get("message") if skipped is not None else "") or "no reason given"
            yield name, "skipped", message.strip().split("\n")[-1]
        else:
            yield name, "passed", ""


def unfinished_case(log):
    """" at NAME", where GoogleTest's last case began and did not end; else nothing."""
    try:
        with open(log, errors="replace") as lines:
            marks = re.findall(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/.]+)", lines.read(), re.M)
    except OSError:
        return ""
    return " at " + marks[-1][1] if marks and marks[-1][0] == "RUN" else ""


def main():
    events, status = sys.argv[1], int(sys.argv[2])
    targets, reports, logs = read_events(events)
    outcomes = collections.Counter()
    reasons = collections.Counter()
    for label in sorted(targets):
        failed = 0
        for path in reports[label].values():
            for name, outcome, reason in read_report(path):
                outcomes[outcome] += 1
                if outcome == "failed":
                    failed += 1
                    print("FAILED %s %s%s" % (label, name, unfinished_case(logs.get(label, ""))))
                elif outcome == "skipped":
                    reasons[reason] += 1
        if targets[label] not in GOOD and not failed:
            outcomes["failed"] += 1
            how = targets[label].lower().replace("_", " ")
            print("FAILED %s (%s%s)" % (label, how, unfinished_case(logs.get(label, ""))))
    if status and not outcomes["failed"]:
        outcomes["failed"] += 1
        print("FAILED bazel (exit status %d)" % status)

    for reason, count in reasons.most_common():
        print("%d skipped (%s)" % (count, reason))
    print("%d passed, %d failed" % (outcomes["passed"], outcomes["failed"]))
    sys.exit(status or (1 if outcomes["failed"] or not outcomes["passed"] else 0))


if __name__ == "__main__":
    main()
