// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/forms.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/kind.h"
#include "common/kubernetes/names.h"
#include "daemon/core/identity/rules.h"

namespace gpumemd {
namespace {

constexpr char kTenantName[] = "1 to 63 letters, digits, '.', '_' or '-'";

std::optional<std::string> AsText(const toml::value& value) {
  if (!value.is_string() || value.as_string().str.empty()) return std::nullopt;
  return value.as_string().str;
}

std::optional<std::string> AsAbsolutePath(const toml::value& value) {
  std::optional<std::string> path = AsText(value);
  if (!path || path->front() != '/') return std::nullopt;
  return path;
}

bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

std::optional<std::string> AsTenantName(const toml::value& value) {
  std::optional<std::string> name = AsText(value);
  if (!name || !IsTenantName(*name)) return std::nullopt;
  return name;
}

std::optional<std::string> AsTenantOrTemplate(const toml::value& value) {
  std::optional<std::string> name = AsText(value);
  if (!name) return std::nullopt;
  std::vector<std::pair<absl::string_view, absl::string_view>> values;
  for (const Placeholder& known : Placeholders()) {
    // The longest uid there is: with every other one it is a name as well. What the others stand
    // for is made to fit (TenantOf).
    values.emplace_back(known.text, known.text == "{uid}" ? "4294967295" : "x");
  }
  const std::vector<std::string> labels = LabelsIn(*name);
  std::vector<std::string> placeholders;
  for (const std::string& key : labels) {
    if (!gpumem::IsLabelKey(key)) return std::nullopt;
    placeholders.push_back(LabelPlaceholder(key));
  }
  for (const std::string& placeholder : placeholders) values.emplace_back(placeholder, "x");
  if (!IsTenantName(absl::StrReplaceAll(*name, values))) return std::nullopt;
  return name;
}

std::optional<uint64_t> AsBytes(const toml::value& value) {
  if (value.is_integer() && value.as_integer() >= 0) {
    return static_cast<uint64_t>(value.as_integer());
  }
  if (!value.is_string()) return std::nullopt;
  absl::StatusOr<uint64_t> bytes = gpumem::ParseBytes(value.as_string().str);
  if (!bytes.ok()) return std::nullopt;
  return *bytes;
}

std::optional<SizeLimit> AsSizeLimit(const toml::value& value) {
  if (value.is_string() && absl::EndsWith(value.as_string().str, "%")) {
    const std::string& text = value.as_string().str;
    double percent = 0;
    // ParseBytesOrPercent decides the syntax of a percentage: SimpleAtod alone would accept "nan%"
    // as well.
    if (!gpumem::ParseBytesOrPercent(text, 100).ok() ||
        !absl::SimpleAtod(absl::StripSuffix(text, "%"), &percent)) {
      return std::nullopt;
    }
    return SizeLimit{.percent = percent};
  }
  std::optional<uint64_t> bytes = AsBytes(value);
  if (!bytes) return std::nullopt;
  return SizeLimit{.bytes = *bytes};
}

std::optional<mode_t> AsMode(const toml::value& value) {
  std::optional<std::string> text = AsText(value);
  if (!text || text->size() > 4) return std::nullopt;
  mode_t mode = 0;
  for (char digit : *text) {
    if (digit < '0' || digit > '7') return std::nullopt;
    mode = mode * 8 + static_cast<mode_t>(digit - '0');
  }
  if (mode > 0777) return std::nullopt;
  return mode;
}

std::optional<absl::Duration> AsDuration(const toml::value& value) {
  absl::Duration duration;
  std::optional<std::string> text = AsText(value);
  if (!text || !absl::ParseDuration(*text, &duration)) return std::nullopt;
  if (duration < absl::ZeroDuration() || duration > absl::Hours(24)) return std::nullopt;
  return duration;
}

}  // namespace

Form<std::string> TextForm() { return {"a text", "one in quotes, not empty", AsText}; }

Form<std::string> AbsolutePathForm() {
  return {"an absolute path", "one such as \"/run/gpumem\"", AsAbsolutePath};
}

Form<std::string> TenantNameForm() { return {"a tenant's name", kTenantName, AsTenantName}; }

Form<std::string> TenantOrTemplateForm() {
  const std::string placeholders = absl::StrJoin(
      Placeholders(), ", ",
      [](std::string* out, const Placeholder& known) { absl::StrAppend(out, known.text); });
  return {"a tenant's name",
          absl::StrCat(kTenantName, "; these in it stand for the process's: ", placeholders,
                       ", {label:KEY}"),
          AsTenantOrTemplate};
}

Form<std::string> ParentForm() {
  return {"a tenant's name", "the name of a [[tenant]], or \"\" for none",
          [](const toml::value& value) -> std::optional<std::string> {
            if (value.is_string() && value.as_string().str.empty()) return "";
            return AsTenantName(value);
          }};
}

Form<uint64_t> BytesForm() { return {"a size", "bytes such as \"64GiB\"", AsBytes}; }

Form<SizeLimit> SizeLimitForm(absl::string_view whole) {
  return {"a size",
          absl::StrCat("bytes such as \"40GiB\", or a percentage of ", whole, " such as \"50%\""),
          AsSizeLimit};
}

Form<uint32_t> CountForm(uint32_t least, uint32_t most) {
  return {"valid", absl::StrCat("a whole number from ", least, " to ", most),
          [=](const toml::value& value) -> std::optional<uint32_t> {
            if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most) {
              return std::nullopt;
            }
            return static_cast<uint32_t>(value.as_integer());
          }};
}

Form<int32_t> IntegerForm(int32_t least, int32_t most) {
  return {"valid", absl::StrCat("a whole number from ", least, " to ", most),
          [=](const toml::value& value) -> std::optional<int32_t> {
            if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most) {
              return std::nullopt;
            }
            return static_cast<int32_t>(value.as_integer());
          }};
}

Form<mode_t> ModeForm() {
  return {"a file mode", "octal digits in quotes such as \"0660\"", AsMode};
}

Form<absl::Duration> DurationForm() {
  return {"a duration", "one such as \"10s\" or \"1m30s\", at most a day", AsDuration};
}

Form<bool> BoolForm() {
  return {"valid", "true or false", [](const toml::value& value) -> std::optional<bool> {
            if (!value.is_boolean()) return std::nullopt;
            return value.as_boolean();
          }};
}

Form<gpumem::SpinOptions> SpinForm() {
  return {"a time to spin", "microseconds up to 1000, such as \"50\", or \"50,always\"",
          [](const toml::value& value) -> std::optional<gpumem::SpinOptions> {
            if (!value.is_string()) return std::nullopt;
            absl::StatusOr<gpumem::SpinOptions> parsed = gpumem::ParseSpin(value.as_string().str);
            if (!parsed.ok()) return std::nullopt;
            return *parsed;
          }};
}

Form<Kind> KindForm() {
  std::vector<std::pair<std::string, Kind>> words;
  for (const gpumem::KindTraits& row : gpumem::kKindTable) {
    if (gpumem::GivesMemory(row)) words.emplace_back(row.name, row.kind);
  }
  return OneOfForm<Kind>(std::move(words));
}

Form<ReleasePolicy> ReleaseForm() {
  return OneOfForm<ReleasePolicy>(
      {{"trust", ReleasePolicy::kTrust}, {"on-exit", ReleasePolicy::kOnExit}});
}

Form<PreloadMode> PreloadForm() {
  return OneOfForm<PreloadMode>(
      {{"account", PreloadMode::kAccount}, {"broker", PreloadMode::kBroker}});
}

std::optional<gid_t> ReadGroup(const std::string& key, const NameLookup& names,
                               TableReader* reader) {
  std::string group;
  reader->Read(key, TextForm(), &group);
  if (group.empty()) return std::nullopt;
  const std::optional<gid_t> gid = names.group(group);
  if (!gid) {
    reader->Complain(*reader->Find(key), key,
                     absl::StrCat("this machine has no group \"", group, "\""));
  }
  return gid;
}

}  // namespace gpumemd
