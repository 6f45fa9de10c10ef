#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# soak_test.sh SOAK PROGRAM...: a soak of less than a minute, with a rest in it. All operations,
# faults and tasks take place, nothing goes wrong, and nothing is left in the end. What grows in an
# hour it cannot show.
set -euo pipefail

SOAK=$1
shift
WORK=$(mktemp -d)
readonly SOAK WORK
finish() {
  (($? == 0)) || cat "$WORK/verdict" || true
  kill $(jobs -p) 2>/dev/null || true
  wait
  rm -rf "$WORK"
}
trap finish EXIT

# The soak finds programs beside it.
cp "$SOAK" "$@" "$WORK"
"$WORK/gpumem_soak" --time 45 --out "$WORK/out" >"$WORK/verdict" &
# Not before it knows the signal.
until [[ -s $WORK/out/samples.csv ]] || ! kill -0 $!; do sleep 0.1; done
kill -USR1 $!
until grep -q '^rests at ' "$WORK/verdict" || ! kill -0 $!; do sleep 0.1; done
for child in $(cat "/proc/$!/task/"*/children); do
  ! grep -qzx worker "/proc/$child/cmdline" || exit 1  # none is left
done
sleep 5  # the length of the rest
kill -USR2 $!
wait $!
cat "$WORK/verdict"
grep -q '^soak: passed' "$WORK/verdict"

# The rest does not count as time of the soak.
/usr/bin/python3 - "$WORK" <<'END'
import csv
import re
import sys

words = open(sys.argv[1] + "/verdict").read()
begin = float(re.search(r"^rests at (\S+) s$", words, re.M)[1])
length = float(re.search(r"^goes on after (\S+) s$", words, re.M)[1])
rows = csv.DictReader(open(sys.argv[1] + "/out/samples.csv"))
first = min(second for row in rows if (second := float(row["seconds"])) > begin + 0.5)
assert length >= 5 and first < begin + length, (begin, length, first)
END

# The table can be judged again, and drawn.
"$WORK/gpumem_soak" --judge "$WORK/out/samples.csv" | grep -q '^daemon_anonymous '
/usr/bin/python3 tests/soak/plot.py "$WORK/out/samples.csv" "$WORK/soak.svg"
/usr/bin/python3 - "$WORK/soak.svg" <<'END'
import sys
import xml.etree.ElementTree as ElementTree

lines = ElementTree.parse(sys.argv[1]).getroot().findall(".//{http://www.w3.org/2000/svg}polyline")
assert len(lines) >= 6, len(lines)
END
