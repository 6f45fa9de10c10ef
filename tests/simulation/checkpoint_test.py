#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A campaign that is interrupted and continued sees what one in a piece sees."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.abspath(sys.argv[1])
FLAGS = ["--seed=100", "--worlds=300", "--steps=300", "--check=incremental"]
# Interruptions end some day, also on a slow machine.
MOST_RUNS = 1000


def summary(text):
    found = re.search(r"^(\d+) worlds, (\d+) steps, (\d+) kills, digest (\w+);", text, re.M)
    assert found, text
    return found.groups()


def main():
    with tempfile.TemporaryDirectory() as folder:
        whole = subprocess.run([PROGRAM, *FLAGS], check=True, capture_output=True, text=True)
        expected = summary(whole.stdout)
        assert expected[0] == "300", whole.stdout

        checkpoint = os.path.join(folder, "checkpoint")
        command = [PROGRAM, *FLAGS, "--checkpoint=" + checkpoint]
        interrupted = 0
        for _ in range(MOST_RUNS):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as campaign:
                if interrupted < 4:
                    # It prints this once it has handlers.
                    campaign.stdout.readline()
                    time.sleep(0.2)
                    campaign.send_signal(signal.SIGTERM)
                text = campaign.communicate()[0]
            assert campaign.returncode == 0, (campaign.returncode, text)
            found = summary(text)
            if found[0] == "300":
                break
            interrupted += 1
        assert found == expected, (found, expected)
        assert interrupted > 0, "it was never interrupted"

        other = subprocess.run([PROGRAM, "--seed=1", "--checkpoint=" + checkpoint],
                               capture_output=True, text=True, check=False)
        assert other.returncode == 2 and "other flags" in other.stderr, other


main()
