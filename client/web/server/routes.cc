// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/routes.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/web/server/bundle.h"

namespace gpumem::web {
namespace {

struct Path {
  absl::string_view path;
  Route route;
};
constexpr std::array<Path, 8> kPaths = {{{"/api/v1/me", Route::kMe},
                                         {"/api/v1/snapshot", Route::kSnapshot},
                                         {"/api/v1/history", Route::kHistory},
                                         {"/api/v1/stream", Route::kStream},
                                         {"/api/v1/overview", Route::kOverview},
                                         {"/api/v1/peers", Route::kPeers},
                                         {"/api/v1/links", Route::kLinks},
                                         {"/api/v1/login", Route::kLogin}}};

bool IsUtf8(const std::string& text) {
  // The strict writer throws at other bytes.
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

// Decodes %XX and '+'. nullopt if it is malformed.
std::optional<std::string> Decode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const absl::string_view digits = text.substr(i + 1, 2);
    if (digits.size() != 2 || !absl::ascii_isxdigit(digits[0]) ||
        !absl::ascii_isxdigit(digits[1])) {
      return std::nullopt;
    }
    decoded += absl::HexStringToBytes(digits);
    i += 2;
  }
  if (!IsUtf8(decoded)) return std::nullopt;
  return decoded;
}

}  // namespace

absl::string_view PathOf(absl::string_view target) { return target.substr(0, target.find('?')); }

Route RouteOf(absl::string_view target) {
  const absl::string_view path = PathOf(target);
  for (const Path& known : kPaths) {
    if (known.path == path) return known.route;
  }
  return FindFile(path) == nullptr ? Route::kNone : Route::kFile;
}

absl::StatusOr<HistoryQuery> ParseHistoryQuery(absl::string_view target) {
  HistoryQuery query;
  const size_t mark = target.find('?');
  if (mark == absl::string_view::npos) return query;
  bool has_device = false;
  for (const absl::string_view parameter : absl::StrSplit(target.substr(mark + 1), '&')) {
    if (parameter.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(parameter, absl::MaxSplits('=', 1));
    std::optional<std::string> value = Decode(parts.second);
    if (!value.has_value()) {
      return absl::InvalidArgumentError("a parameter is not percent-encoded UTF-8");
    }
    if (parts.first == "device" && !std::exchange(has_device, true)) {
      query.device = *std::move(value);
    } else if (parts.first == "tenant") {
      if (query.tenants.size() >= HistoryQuery::kMostTenants) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", HistoryQuery::kMostTenants, " tenants"));
      }
      query.tenants.push_back(*std::move(value));
    } else {
      return absl::InvalidArgumentError("the parameters are device, once, and tenant");
    }
  }
  return query;
}

}  // namespace gpumem::web
