#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a framework's own unittest modules by their names, and writes the results to $GPUMEM_REPORT
as reporter.py does.

    own_tests.py MODULE ... [--without TEST ...]

pytest finds numba-cuda's tests by their files, and imports them by a wrong name. Each module has a
separate process, since some reset the device, after which not all works (docs/python/results.md).
"""
import argparse
import importlib
import subprocess
import sys
import unittest

import reporter


class Result(unittest.TextTestResult):
    """Tells of each test as it begins and ends."""

    def startTest(self, test):
        super().startTest(test)
        self._wrong = []
        self._skipped = None
        reporter._say(test=test.id(), what="begins")

    def addError(self, test, err):
        super().addError(test, err)
        self._wrong.append(self._exc_info_to_string(err, test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._wrong.append(self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._wrong.append(self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._skipped = reason

    def stopTest(self, test):
        super().stopTest(test)
        if self._wrong:
            reporter._say(test=test.id(), what="failed", why=self._wrong[-1][-1500:])
        elif self._skipped is not None:
            reporter._say(test=test.id(), what="skipped", why=self._skipped)
        else:
            reporter._say(test=test.id(), what="passed", why="")


def each(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from each(one)
        else:
            yield one


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--without", nargs="*", default=[])
    args = parser.parse_args()
    if len(args.modules) > 1:
        codes = [subprocess.call([sys.executable, "-X", "faulthandler", __file__, name,
                                  "--without", *args.without]) for name in args.modules]
        sys.exit(1 if any(codes) else 0)
    wanted = unittest.TestSuite()
    for name in args.modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # one module's trouble is not the others'
            reporter._say(test=name, what="failed", why=f"cannot be imported: {error!r}")
            continue
        for test in each(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if test.id() not in args.without:
                wanted.addTest(test)
    result = unittest.TextTestRunner(sys.stdout, verbosity=2, resultclass=Result).run(wanted)
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
