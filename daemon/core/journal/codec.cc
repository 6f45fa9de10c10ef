// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/kind.h"

namespace gpumemd::journal {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

template <typename T>
concept Number = (std::is_integral_v<T> && !std::is_same_v<T, bool>) ||
                 (std::is_enum_v<T> && sizeof(T) == 8);  // an id

struct Sizer {
  size_t bytes = 0;

  constexpr void operator()(const bool&) { bytes += 1; }
  constexpr void operator()(const Kind&) { bytes += 1; }
  template <Number T>
  constexpr void operator()(const T&) {
    bytes += sizeof(T);
  }
  template <size_t kMost>
  constexpr void operator()(const Text<kMost>&) {
    bytes += 1 + kMost;
  }
  template <size_t kSize>
  constexpr void operator()(const std::array<uint8_t, kSize>&) {
    bytes += kSize;
  }
  template <typename T>
  constexpr void operator()(const std::optional<T>&) {
    bytes += 1 + sizeof(T);
  }
};

struct FieldWriter {
  uint8_t* at;

  void Copy(const void* from, size_t bytes) {
    std::memcpy(at, from, bytes);
    at += bytes;
  }
  void operator()(bool value) { *at++ = value ? 1 : 0; }
  void operator()(Kind kind) { *at++ = static_cast<uint8_t>(kind); }
  template <Number T>
  void operator()(const T& value) {
    Copy(&value, sizeof value);
  }
  template <size_t kMost>
  void operator()(const Text<kMost>& text) {
    *at++ = static_cast<uint8_t>(text.view().size());
    std::memcpy(at, text.view().data(), text.view().size());
    at += kMost;  // zeros are there already
  }
  template <size_t kSize>
  void operator()(const std::array<uint8_t, kSize>& bytes) {
    Copy(bytes.data(), kSize);
  }
  template <typename T>
  void operator()(const std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) {
      (*this)(*value);
    } else {
      at += sizeof(T);
    }
  }
};

bool AllZero(const uint8_t* begin, const uint8_t* end) {
  return std::all_of(begin, end, [](uint8_t byte) { return byte == 0; });
}

// `ok` becomes false for bytes that FieldWriter never writes. Reads no further than the type's
// size, whatever the bytes are.
struct FieldReader {
  const uint8_t* at;
  bool ok = true;

  void operator()(bool& value) {
    ok &= *at <= 1;
    value = *at++ == 1;
  }
  void operator()(Kind& kind) {
    const gpumem::KindTraits* const row = gpumem::FindKind(*at++);
    if (row == nullptr) {
      ok = false;
    } else {
      kind = row->kind;
    }
  }
  template <Number T>
  void operator()(T& value) {
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
  }
  template <size_t kMost>
  void operator()(Text<kMost>& text) {
    const size_t size = std::min<size_t>(*at, kMost);
    const uint8_t* const begin = at + 1;
    ok &= *at <= kMost && AllZero(begin + size, begin + kMost);
    std::array<char, kMost> chars;
    std::memcpy(chars.data(), begin, kMost);
    text = absl::string_view(chars.data(), size);
    at = begin + kMost;
  }
  template <size_t kSize>
  void operator()(std::array<uint8_t, kSize>& bytes) {
    std::memcpy(bytes.data(), at, kSize);
    at += kSize;
  }
  template <typename T>
  void operator()(std::optional<T>& value) {
    bool there = false;
    (*this)(there);
    if (there) {
      (*this)(value.emplace());
    } else {
      ok &= AllZero(at, at + sizeof(T));
      at += sizeof(T);
    }
  }
};

template <typename T>
consteval size_t KeyBytesOf() {
  Sizer sizer;
  const T object{};
  T::KeyFields(object, sizer);
  return sizer.bytes;
}

template <typename T>
consteval size_t BytesOf() {
  Sizer sizer;
  const T object{};
  T::KeyFields(object, sizer);
  T::Fields(object, sizer);
  return sizer.bytes;
}

// The layout on disk must not change: a change here is a new version (table.h).
static_assert(BytesOf<Counters>() == 56 && KeyBytesOf<Counters>() == 0);
static_assert(BytesOf<Session>() == 221 && KeyBytesOf<Session>() == 8);
static_assert(BytesOf<Segment>() == 222 && KeyBytesOf<Segment>() == 8);
static_assert(BytesOf<Lease>() == 140 && KeyBytesOf<Lease>() == 8);
static_assert(BytesOf<Exposure>() == 20 && KeyBytesOf<Exposure>() == 16);
static_assert(BytesOf<PoolImport>() == 76 && KeyBytesOf<PoolImport>() == 72);
static_assert(BytesOf<Publication>() == 183 && KeyBytesOf<Publication>() == 8);
static_assert(BytesOf<PublicationItem>() == 20 && KeyBytesOf<PublicationItem>() == 12);
static_assert(BytesOf<IpcEvent>() == 218 && KeyBytesOf<IpcEvent>() == 8);
static_assert(BytesOf<Answer>() == 24 && KeyBytesOf<Answer>() == 16);
static_assert(BytesOf<TierExtent>() == 28 && KeyBytesOf<TierExtent>() == 12);
static_assert(BytesOf<PublicationContent>() == 73 && KeyBytesOf<PublicationContent>() == 8);
static_assert(BytesOf<Claim>() == 146 && KeyBytesOf<Claim>() == 16);
static_assert(BytesOf<MadeTenant>() == 197 && KeyBytesOf<MadeTenant>() == 8);
static_assert(BytesOf<MadeTenantQuota>() == 118 && KeyBytesOf<MadeTenantQuota>() == 8);
static_assert(BytesOf<MadeTenantDevice>() == 94 && KeyBytesOf<MadeTenantDevice>() == 12);
static_assert(BytesOf<MadeTenantUse>() == 108 && KeyBytesOf<MadeTenantUse>() == 72);

// True if each type's place in Object is one less than its number.
template <size_t... kIndex>
consteval bool AreInOrder(std::index_sequence<kIndex...>) {
  return ((static_cast<size_t>(std::variant_alternative_t<kIndex, Object>::kType) == kIndex + 1) &&
          ...) &&
         ((BytesOf<std::variant_alternative_t<kIndex, Object>>() <= kPayloadBytes) && ...);
}
using Indices = std::make_index_sequence<std::variant_size_v<Object>>;
static_assert(AreInOrder(Indices()) && std::variant_size_v<Object> == kLastType);

template <typename T>
std::optional<Change> DecodeAs(Op op, absl::Span<const uint8_t> payload, bool more) {
  if (std::is_same_v<T, Counters> && op == Op::kErase) return std::nullopt;
  T object{};
  FieldReader reader{payload.data()};
  T::KeyFields(object, reader);
  if (op == Op::kPut) T::Fields(object, reader);
  if (!reader.ok) return std::nullopt;
  if (!more && !AllZero(reader.at, payload.data() + kPayloadBytes)) return std::nullopt;
  return Change{op, std::move(object)};
}

using Decoder = std::optional<Change> (*)(Op, absl::Span<const uint8_t>, bool);
template <size_t... kIndex>
constexpr std::array<Decoder, kLastType> Decoders(std::index_sequence<kIndex...>) {
  return {DecodeAs<std::variant_alternative_t<kIndex, Object>>...};
}
}  // namespace

Type TypeOf(const Object& object) { return static_cast<Type>(object.index() + 1); }

uint8_t VersionOf(const Object& object) {
  if (std::holds_alternative<MadeTenantUse>(object)) return 8;
  if (const auto* made = std::get_if<MadeTenant>(&object))
    return made->user ? 8 : made->lasting ? 7 : 6;
  if (std::holds_alternative<MadeTenantQuota>(object) ||
      std::holds_alternative<MadeTenantDevice>(object)) {
    return 6;
  }
  if (std::holds_alternative<PublicationContent>(object) || std::holds_alternative<Claim>(object))
    return 5;
  if (std::holds_alternative<TierExtent>(object)) return 2;
  if (const auto* segment = std::get_if<Segment>(&object)) {
    return segment->kind == Kind::kDriver ? 6
           : segment->kind == Kind::kHost ? 4
           : segment->scratch             ? 3
           : segment->kind == Kind::kTier ? 2
                                          : 1;
  }
  if (const auto* lease = std::get_if<Lease>(&object))
    return !lease->tag.empty() ? 3 : lease->suspended ? 2 : 1;
  return 1;
}

bool MayPass(const Object& object) {
  if (std::holds_alternative<MadeTenantUse>(object)) return true;
  // One from before version 6 is stopped by the record of the tenant's quota.
  const auto* made = std::get_if<MadeTenant>(&object);
  return made != nullptr && made->user && !made->lasting;
}

void Encode(const Change& change, absl::Span<uint8_t> payload) {
  std::memset(payload.data(), 0, kPayloadBytes);
  std::visit(
      [&]<typename T>(const T& object) {
        FieldWriter writer{payload.data()};
        T::KeyFields(object, writer);
        if (change.op == Op::kPut) T::Fields(object, writer);
      },
      change.object);
}

std::optional<Change> Decode(uint8_t type, uint8_t op, absl::Span<const uint8_t> payload,
                             bool more) {
  constexpr std::array<Decoder, kLastType> kDecoders = Decoders(Indices());
  if (type < 1 || type > kLastType || payload.size() != kPayloadBytes) return std::nullopt;
  if (op != static_cast<uint8_t>(Op::kPut) && op != static_cast<uint8_t>(Op::kErase)) {
    return std::nullopt;
  }
  return kDecoders[type - 1](static_cast<Op>(op), payload, more);
}

std::optional<Change> DecodeKey(uint8_t type, absl::Span<const uint8_t> payload) {
  return Decode(type, static_cast<uint8_t>(Op::kErase), payload, /*more=*/true);
}

}  // namespace gpumemd::journal
