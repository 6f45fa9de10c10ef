// SPDX-License-Identifier: Apache-2.0
#include "common/spin/answer_spinner.h"

#include <stdlib.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace gpumem {
namespace {

SpinOptions FromEnvironment() {
  const char* const text = secure_getenv("GPUMEM_SPIN_US");
  if (text == nullptr) return {};
  const absl::StatusOr<SpinOptions> options = ParseSpin(text);
  return options.ok() ? *options : SpinOptions{.most = absl::ZeroDuration()};
}

}  // namespace

Spinner& AnswerSpinner() {
  // Never destroyed: threads may wait while the process exits.
  static auto* const spinner = new Spinner(FromEnvironment());
  return *spinner;
}

}  // namespace gpumem
