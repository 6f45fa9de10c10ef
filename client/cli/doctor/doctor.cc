// SPDX-License-Identifier: Apache-2.0
// gpumemctl doctor.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/cli/doctor/collect.h"
#include "client/cli/doctor/examine.h"
#include "client/cli/doctor/findings_view.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/terminal.h"

namespace gpumem::cli {

absl::Status Run(const DoctorCommand&, const GlobalOptions& options) {
  const std::vector<Finding> findings = Examine(Collect(options.runtime_dir, options.timeout));
  const Output output = Stdout(options.color);
  Print(options.json
            ? Document(DoctorJson(findings))
            : ToString(DoctorView(findings, PictureWidth(output)), output.colour, output.columns));
  const size_t problems = CountOf(findings, Level::kProblem);
  if (problems == 0) return absl::OkStatus();
  absl::Status found = absl::FailedPreconditionError(
      absl::StrCat("there ", problems == 1 ? "is " : "are ", Counted(problems, "problem")));
  found.SetPayload(kProblemPayload, absl::Cord());
  return Silent(std::move(found));  // both outputs count the problems
}

}  // namespace gpumem::cli
