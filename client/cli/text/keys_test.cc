// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

KeyPress Character(char c) { return {Key::kCharacter, c}; }

TEST(KeysTest, CharactersAndSequences) {
  EXPECT_THAT(KeysOf(""), IsEmpty());
  EXPECT_THAT(KeysOf("q?"), ElementsAre(Character('q'), Character('?')));
  EXPECT_THAT(KeysOf("\x1b[A\x1b[B\x1bOA\x1bOB"),
              ElementsAre(KeyPress{Key::kUp}, KeyPress{Key::kDown}, KeyPress{Key::kUp},
                          KeyPress{Key::kDown}));
  EXPECT_THAT(KeysOf("\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~"),
              ElementsAre(KeyPress{Key::kPageUp}, KeyPress{Key::kPageDown}, KeyPress{Key::kHome},
                          KeyPress{Key::kEnd}, KeyPress{Key::kHome}, KeyPress{Key::kEnd}));
}

TEST(KeysTest, UnknownSequencesAreOneKeyThatDoesNothing) {
  EXPECT_THAT(KeysOf("\x1b[15~t"), ElementsAre(KeyPress{Key::kOther}, Character('t')));
  EXPECT_THAT(KeysOf("\x1b[1;5Aq"), ElementsAre(KeyPress{Key::kUp}, Character('q')));
  EXPECT_THAT(KeysOf("\x1b"), ElementsAre(KeyPress{Key::kEscape}));
  EXPECT_THAT(KeysOf("\x1bq"), ElementsAre(KeyPress{Key::kEscape}, Character('q')));
  EXPECT_THAT(KeysOf("\x1b[12"), ElementsAre(KeyPress{Key::kOther}));
}

}  // namespace
}  // namespace gpumem::cli
