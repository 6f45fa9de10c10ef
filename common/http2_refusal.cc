// SPDX-License-Identifier: Apache-2.0
#include "common/http2_refusal.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

constexpr size_t kMostText = 500;
constexpr size_t kFrameHeader = 9;
constexpr size_t kGoawayBefore = 8;  // last stream and error code, before the debug data
constexpr uint8_t kSettings = 4, kGoaway = 7;
constexpr uint32_t kEnhanceYourCalm = 0xb, kInadequateSecurity = 0xc;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

uint32_t NumberIn(absl::string_view bytes) {
  uint32_t number = 0;
  for (char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string Frame(uint8_t type, absl::string_view payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3), BigEndian(type, 1),
                      BigEndian(0, 1), BigEndian(0, 4), payload);
}

}  // namespace

std::string Http2Refusal(const absl::Status& why) {
  std::string text(why.message().substr(0, kMostText));
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  const uint32_t code = absl::IsResourceExhausted(why) ? kEnhanceYourCalm : kInadequateSecurity;
  return Frame(kSettings, "") +
         Frame(kGoaway, absl::StrCat(BigEndian(0, 4), BigEndian(code, 4), text));
}

std::optional<absl::Status> ParseHttp2Refusal(absl::string_view bytes) {
  while (bytes.size() >= kFrameHeader) {
    const size_t size = NumberIn(bytes.substr(0, 3));
    const auto type = static_cast<uint8_t>(bytes[3]);
    if (type != kSettings && type != kGoaway) return std::nullopt;
    const absl::string_view payload = bytes.substr(kFrameHeader, size);
    if (payload.size() < size) return std::nullopt;
    bytes.remove_prefix(kFrameHeader + size);
    if (type == kSettings) continue;
    if (size < kGoawayBefore) return std::nullopt;
    std::string text(payload.substr(kGoawayBefore));
    for (char& c : text) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
    }
    return NumberIn(payload.substr(4, 4)) == kEnhanceYourCalm ? absl::ResourceExhaustedError(text)
                                                              : absl::PermissionDeniedError(text);
  }
  return std::nullopt;
}

}  // namespace gpumem
