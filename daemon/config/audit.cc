// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/audit.h"

#include "daemon/config/forms.h"

namespace gpumemd {

void ReadAudit(const toml::value& table, Mistakes* mistakes, AuditConfig* config) {
  TableReader reader(table, "audit", mistakes);
  reader.Read("output",
              OneOfForm<AuditTo>({{"auto", AuditTo::kAuto},
                                  {"journal", AuditTo::kJournal},
                                  {"json", AuditTo::kJson},
                                  {"off", AuditTo::kOff}}),
              &config->output);
  reader.Read("path", AbsolutePathForm(), &config->path);
  reader.Read("grants", BoolForm(), &config->grants);
  reader.Read("per_second", CountForm(0, 1'000'000), &config->per_second);
  const bool json = config->output == AuditTo::kJson || config->output == AuditTo::kAuto;
  if (!config->path.empty() && !json) {
    reader.Complain(*reader.Find("path"), "path",
                    "a file is only written with output = \"json\" or \"auto\"");
  }
  reader.Finish();
}

}  // namespace gpumemd
