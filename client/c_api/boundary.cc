// SPDX-License-Identifier: Apache-2.0
#include "client/c_api/boundary.h"

#include <pthread.h>

#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "common/kind.h"

namespace gpumem::c_api {
namespace {

constexpr bool AreOne(int c_kind, Kind kind, SegmentKind segment_kind) {
  return c_kind == static_cast<int>(kind) && c_kind == static_cast<int>(segment_kind);
}

static_assert(GPUMEM_UNAUTHENTICATED == static_cast<int>(absl::StatusCode::kUnauthenticated));
static_assert(GPUMEM_RESOURCE_EXHAUSTED == static_cast<int>(absl::StatusCode::kResourceExhausted));
static_assert(GPUMEM_KIND_DEFAULT == static_cast<int>(Kind::kDefault));
static_assert(AreOne(GPUMEM_KIND_VMM, Kind::kVmm, SegmentKind::kVmm));
static_assert(AreOne(GPUMEM_KIND_MEMPOOL, Kind::kMempool, SegmentKind::kMempool));
static_assert(AreOne(GPUMEM_KIND_IPC, Kind::kIpc, SegmentKind::kIpc));
static_assert(AreOne(GPUMEM_KIND_PINNED, Kind::kPinned, SegmentKind::kPinned));
static_assert(AreOne(GPUMEM_KIND_HOST, Kind::kHost, SegmentKind::kHost));
static_assert(AreOne(GPUMEM_KIND_DRIVER, Kind::kDriver, SegmentKind::kDriver));
static_assert(GPUMEM_CAUSE_UNKNOWN == static_cast<int>(Denial::Cause::kUnknown));
static_assert(GPUMEM_CAUSE_DAEMON_LIMIT == static_cast<int>(Denial::Cause::kDaemonLimit));
static_assert(GPUMEM_CAUSE_QUEUE == static_cast<int>(Denial::Cause::kQueue));
static_assert(GPUMEM_CAUSE_UNBROKERED == static_cast<int>(Denial::Cause::kUnbrokered));
static_assert(GPUMEM_CAUSE_MAX_PUBLICATIONS == static_cast<int>(Denial::Cause::kMaxPublications));

constexpr size_t kMaxHolders = 8;

// Text of a fixed size, which allocates no memory; longer text is truncated.
template <size_t kBytes>
struct Cut {
  char text[kBytes];

  void operator=(absl::string_view from) {
    const size_t size = std::min(from.size(), kBytes - 1);
    std::memcpy(text, from.data(), size);
    text[size] = '\0';
  }
};

struct LastError {
  Cut<2048> message;
  bool denied;
  gpumem_denial denial;
  Cut<128> tenant, device_uuid, limited_tenant;
  Cut<512> help;
  std::array<Cut<128>, kMaxHolders> holder_names;
  std::array<gpumem_holder, kMaxHolders> holders;
};

// Returns this thread's last error; null if it has none or, with `make`, if there is no memory for
// it. It uses a key instead of a thread-local variable: dlopen() has no room for large ones. A key
// works until the very end of a thread and of the process.
LastError* Last(bool make) noexcept {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t made;
    const auto destroy = [](void* last) { delete static_cast<LastError*>(last); };
    if (pthread_key_create(&made, destroy) != 0) return std::nullopt;
    return made;
  }();
  if (!key.has_value()) return nullptr;
  auto* last = static_cast<LastError*>(pthread_getspecific(*key));
  if (last != nullptr || !make) return last;
  std::unique_ptr<LastError> made(new (std::nothrow) LastError{});
  if (made == nullptr || pthread_setspecific(*key, made.get()) != 0) return nullptr;
  return made.release();
}

void Keep(const Denial& denial, LastError& last) {
  last.tenant = denial.tenant;
  last.device_uuid = denial.device_uuid;
  last.help = denial.help;
  last.limited_tenant = denial.limited_tenant;
  const size_t holders = std::min(denial.holders.size(), kMaxHolders);
  for (size_t i = 0; i < holders; ++i) {
    last.holder_names[i] = denial.holders[i].tenant;
    last.holders[i] = {.tenant = last.holder_names[i].text, .used = denial.holders[i].used};
  }
  last.denial = {.cause = static_cast<int32_t>(denial.cause),
                 .tenant = last.tenant.text,
                 .device_uuid = last.device_uuid.text,
                 .asked = denial.asked,
                 .used = denial.used,
                 .limit = denial.limit,
                 .help = last.help.text,
                 .limited_tenant = last.limited_tenant.text,
                 .holders = last.holders.data(),
                 .holder_count = holders};
  last.denied = true;
}

}  // namespace

int Report(const absl::Status& status) noexcept {
  if (status.ok()) return GPUMEM_OK;
  const int code = ReportPlain(status.code(), status.message());
  try {
    const std::optional<Denial> denial = GetDenial(status);
    LastError* const last = Last(/*make=*/false);
    if (denial.has_value() && last != nullptr) Keep(*denial, *last);
  } catch (const std::bad_alloc&) {
    // The message alone has to do.
  }
  return code;
}

int ReportPlain(absl::StatusCode code, absl::string_view message) noexcept {
  if (LastError* const last = Last(/*make=*/true)) {
    last->message = message;
    last->denied = false;
  }
  return static_cast<int>(code);
}

absl::Status NullError(absl::string_view names) {
  return absl::InvalidArgumentError(absl::StrCat("null where a pointer is needed: ", names));
}

absl::Status CheckIndex(size_t index, size_t count, absl::string_view of) {
  if (index < count) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("there is no ", of, " ", index, ": there are ", count, ", counted from 0"));
}

absl::StatusOr<std::vector<std::string>> Texts(const char* const* texts, size_t count) {
  std::vector<std::string> read;
  if (count > 0 && texts == nullptr) return NullError("an array of names");
  for (size_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) return NullError(absl::StrCat("name ", i, " of ", count));
    read.emplace_back(texts[i]);
  }
  return read;
}

absl::Duration Time(uint64_t milliseconds) {
  if (milliseconds > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InfiniteDuration();
  }
  return absl::Milliseconds(static_cast<int64_t>(milliseconds));
}

std::optional<absl::Duration> Timeout(uint64_t milliseconds) {
  if (milliseconds == 0) return std::nullopt;
  return Time(milliseconds);
}

absl::Duration TimeOrNone(uint64_t milliseconds) {
  return milliseconds == 0 ? absl::InfiniteDuration() : Time(milliseconds);
}

absl::StatusOr<std::string> Bytes(const void* data, size_t size, absl::string_view name) {
  if (size == 0) return std::string();
  if (data == nullptr) return NullError(name);
  return std::string(static_cast<const char*>(data), size);
}

absl::Status OfProgram(int code, absl::string_view name) {
  if (code == GPUMEM_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat("the program's ", name, " function returned ", code));
}

static_assert(GPUMEM_PUBLICATION_ACCESS_TENANT == static_cast<int>(PublicationAccess::kTenant));
static_assert(GPUMEM_PUBLICATION_ACCESS_ANY == static_cast<int>(PublicationAccess::kAny));

absl::StatusOr<PublicationAccess> ToAccess(int32_t access) {
  if (access < GPUMEM_PUBLICATION_ACCESS_TENANT || access > GPUMEM_PUBLICATION_ACCESS_ANY) {
    return absl::InvalidArgumentError(absl::StrCat("there is no publication access ", access));
  }
  return static_cast<PublicationAccess>(access);
}

uint64_t ToMilliseconds(absl::Duration time) {
  if (time == absl::InfiniteDuration()) return GPUMEM_UNLIMITED;
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(time));
}

absl::StatusOr<Kind> ToKind(int32_t kind) {
  const KindTraits* const row = FindKind(kind);
  if (kind != GPUMEM_KIND_DEFAULT && (row == nullptr || !IsAcquirable(*row))) {
    return absl::InvalidArgumentError(absl::StrCat("there is no kind ", kind));
  }
  return static_cast<Kind>(kind);
}

absl::StatusOr<OpenOptions> ToOptions(const gpumem_open_options* from) {
  auto c = Read(from);
  if (!c.ok()) return c.status();
  auto map_devices = Texts(c->map_devices, c->map_device_count);
  if (!map_devices.ok()) return map_devices.status();
  return OpenOptions{.read_only = c->read_only != 0,
                     .map_devices = *std::move(map_devices),
                     .address = c->address,
                     .revocable = c->revocable != 0,
                     .timeout = Timeout(c->timeout_ms)};
}

gpumem_segment_info InfoOf(const Segment& segment) {
  return {.struct_size = sizeof(gpumem_segment_info),
          .data = segment.data(),
          .bytes = segment.size(),
          .device_uuid = segment.device_uuid().c_str(),
          .kind = static_cast<int32_t>(segment.kind()),
          .backend = static_cast<int32_t>(segment.backend()),
          .lease_id = segment.lease_id(),
          .segment_id = segment.segment_id(),
          .reused = segment.reused(),
          .registered = segment.registered(),
          .revocable = segment.revocable(),
          .scratch = segment.scratch(),
          .tag = segment.tag().c_str()};
}

}  // namespace gpumem::c_api

using gpumem::c_api::Last;

extern "C" {

uint32_t gpumem_version(void) { return GPUMEM_API_VERSION; }

const char* gpumem_status_name(int status) {
  switch (static_cast<gpumem_status>(status)) {
    case GPUMEM_OK:
      return "OK";
    case GPUMEM_CANCELLED:
      return "CANCELLED";
    case GPUMEM_UNKNOWN:
      return "UNKNOWN";
    case GPUMEM_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case GPUMEM_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case GPUMEM_NOT_FOUND:
      return "NOT_FOUND";
    case GPUMEM_ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case GPUMEM_PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case GPUMEM_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case GPUMEM_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case GPUMEM_ABORTED:
      return "ABORTED";
    case GPUMEM_OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case GPUMEM_UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case GPUMEM_INTERNAL:
      return "INTERNAL";
    case GPUMEM_UNAVAILABLE:
      return "UNAVAILABLE";
    case GPUMEM_DATA_LOSS:
      return "DATA_LOSS";
    case GPUMEM_UNAUTHENTICATED:
      return "UNAUTHENTICATED";
  }
  return "no status";
}

const char* gpumem_last_error(void) {
  const auto* const last = Last(/*make=*/false);
  return last == nullptr ? "" : last->message.text;
}

int gpumem_last_denial(gpumem_denial* denial) {
  const auto* const last = Last(/*make=*/false);
  if (last == nullptr || !last->denied) return GPUMEM_NOT_FOUND;
  return gpumem::c_api::Call([&] { return gpumem::c_api::Write(last->denial, denial); });
}

}  // extern "C"
