// SPDX-License-Identifier: Apache-2.0
// Syntax of the configuration's values: one Form for each type.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/spin/spin.h"
#include "daemon/config/config.h"
#include "daemon/config/toml_reader.h"
#include "daemon/device/device.h"

namespace gpumemd {

Form<std::string> TextForm();  // not empty
Form<std::string> AbsolutePathForm();
Form<std::string> TenantNameForm();  // letters, digits, '.', '_', '-'; at most 63
Form<std::string> TenantOrTemplateForm();
Form<std::string> ParentForm();                          // a tenant's name, or empty
Form<uint64_t> BytesForm();                              // "64GiB", or a plain number of bytes
Form<SizeLimit> SizeLimitForm(absl::string_view whole);  // the same, or "50%" of it
Form<uint32_t> CountForm(uint32_t least, uint32_t most);
Form<int32_t> IntegerForm(int32_t least, int32_t most);
Form<mode_t> ModeForm();              // "0660"
Form<absl::Duration> DurationForm();  // "10s"; at most a day
Form<bool> BoolForm();
Form<gpumem::SpinOptions> SpinForm();  // as ParseSpin()
Form<ReleasePolicy> ReleaseForm();
Form<PreloadMode> PreloadForm();
Form<Kind> KindForm();  // one that programs can acquire, by its name in common/kind.h

// Returns the group that `key` names, or nothing without it. A group that this machine does not
// have is a mistake.
std::optional<gid_t> ReadGroup(const std::string& key, const NameLookup& names,
                               TableReader* reader);

template <typename T>
Form<T> OneOfForm(std::vector<std::pair<std::string, T>> words) {
  std::string known = absl::StrJoin(words, ", ", [](std::string* out, const auto& word) {
    absl::StrAppend(out, "\"", word.first, "\"");
  });
  return {"valid", absl::StrCat("one of ", known),
          [words = std::move(words)](const toml::value& value) -> std::optional<T> {
            if (!value.is_string()) return std::nullopt;
            for (const auto& [word, meaning] : words) {
              if (value.as_string().str == word) return meaning;
            }
            return std::nullopt;
          }};
}

}  // namespace gpumemd
