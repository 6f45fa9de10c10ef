#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What check_steps.py finds wrong."""
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_steps  # pylint: disable=wrong-import-position

SOURCE = """
namespace {
class Service::Call final : public Reactor {
  void AnswerWith(const Answer& answer) {
    call_.reset();
    Finish(answer);
  }
};
}  // namespace

absl::StatusOr<bool> Broker::Create(const Operation& operation) {
  Keep();
  if (made) {
    Write();  // before Answer()
  }
  Answer();
  Keep();
}

void Broker::Answer() { Send(); }
"""


def wrong(*lines):
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, "a.cc"), "w", encoding="utf-8") as file:
            file.write(SOURCE)
        model = os.path.join(root, "a.pml")
        with open(model, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        return check_steps.check(root, model)[0]


class CheckSteps(unittest.TestCase):
    def test_what_is_right(self):
        self.assertEqual(wrong("// step: Broker::Create (a.cc)", "  // step: Broker::Answer (a.cc)",
                               "// order: Broker::Create (a.cc): Keep() < Write() < Answer()",
                               "// order: Service::Call::AnswerWith (a.cc): reset() < Finish(",
                               "// order: Broker::Answer (a.cc): Send()"), [])

    def test_a_function_that_is_gone(self):
        self.assertEqual(wrong("// step: Broker::Delete (a.cc)"),
                         ["a.pml:1: a.cc does not define Broker::Delete"])
        self.assertEqual(wrong("// step: Broker::Create (b.cc)"), ["a.pml:1: there is no b.cc"])
        # A call is no definition.
        self.assertEqual(len(wrong("// step: Keep (a.cc)")), 1)

    def test_another_order(self):
        self.assertEqual(wrong("// order: Broker::Create (a.cc): Write() < Keep()"),
                         ["a.pml:1: Broker::Create (a.cc): `Keep()` comes too early"])
        self.assertEqual(wrong("// order: Broker::Create (a.cc): Keep() < Send()"),
                         ["a.pml:1: Broker::Create (a.cc): it has no `Send()`"])

    def test_marks_of_another_form(self):
        self.assertEqual(len(wrong("// step: Broker::Create", "// order: Broker::Create (a.cc)")), 2)


if __name__ == "__main__":
    unittest.main()
