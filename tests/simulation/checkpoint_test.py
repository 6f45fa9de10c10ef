#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign that is interrupted and continued sees what one in a piece sees."""
import os
import re
import signal
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])
FLAGS = ["--seed=100", "--steps=300", "--check=incremental", "--repeatable"]


def summary(text):
    found = re.search(r"^(\d+) worlds, (\d+) steps, (\d+) kills, digest (\w+);", text, re.M)
    assert found, text
    return found.groups()


def run(*flags):
    return summary(subprocess.run([PROGRAM, *FLAGS, *flags], check=True, capture_output=True,
                                  text=True).stdout)


def main():
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = "--checkpoint=" + os.path.join(folder, "checkpoint")
        command = [PROGRAM, *FLAGS, checkpoint, "--worlds=1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as campaign:
            campaign.stdout.readline()  # it prints this once it has handlers
            campaign.send_signal(signal.SIGTERM)
            text = campaign.communicate()[0]
        assert campaign.returncode == 0, (campaign.returncode, text)
        done = int(summary(text)[0])
        assert done < 1000000, text
        for worlds in (done + 50, done + 100):
            found = run(checkpoint, "--worlds=%d" % worlds)
            assert found == run("--worlds=%d" % worlds), (found, worlds)

        other = subprocess.run([PROGRAM, "--seed=1", checkpoint],
                               capture_output=True, text=True, check=False)
        assert other.returncode == 2 and "other flags" in other.stderr, other


main()
