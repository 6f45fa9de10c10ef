// SPDX-License-Identifier: Apache-2.0
// The tenant's memory on a device: from the daemon's page, or else by a call.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session/session.h"
#include "common/memory_page.h"
#include "gpumem/client.h"

namespace gpumem {
namespace {

// After a daemon gave no page: it may have too many now, or not know the call at all.
constexpr absl::Duration kAskAgain = absl::Seconds(10);

DeviceMemory FromPage(const MemoryFigures& figures) {
  return {.limit_bytes = figures.limit_bytes, .free_bytes = figures.free_bytes, .from_page = true};
}

// Asks the daemon for the page, if that has not been done. Without one, GetUsage serves.
void OpenMemoryPage(internal::Connection& connection, absl::Time deadline) {
  internal::MemoryView& memory = connection.memory();
  if (!memory.BeginToAsk()) return;
  auto page = [&]() -> absl::StatusOr<internal::MemoryView::Page> {
    internal::Deliveries::Call call(&connection.deliveries());
    v1::OpenMemoryPageResponse response;
    const grpc::Status asked = connection.Call(&v1::Broker::Stub::OpenMemoryPage,
                                               v1::OpenMemoryPageRequest(), &response, deadline);
    if (!asked.ok()) return absl::UnavailableError(asked.error_message());
    const auto delivered = call.Collect(response.delivery_id(), deadline);
    if (!delivered.ok()) return delivered.status();
    auto reader = MemoryPageReader::Open(connection.deliveries().TakeMemoryPage());
    if (!reader.ok()) return reader.status();
    return internal::MemoryView::Page{
        .reader = *std::move(reader),
        .device_uuids = {response.device_uuids().begin(), response.device_uuids().end()}};
  }();
  page.ok() ? memory.Set(*std::move(page)) : memory.Refused(kAskAgain);
}

}  // namespace

absl::StatusOr<DeviceMemory> Client::GetMemory(absl::string_view device_uuid) {
  if (absl::Status status = session_->CheckProcess(); !status.ok()) return status;
  if (internal::ReleaseQueue::AnyUnsent()) {
    // The page shows what the daemon knows.
    const auto told = session_->Prepare(session_->Deadline(std::nullopt));
    if (!told.ok()) return told.status();
  }
  const auto current = session_->reconnector_.current();
  if (const auto figures = current->memory().Read(device_uuid); figures && current->SeemsAlive()) {
    return FromPage(*figures);
  }
  const absl::Time deadline = session_->Deadline(std::nullopt);
  const auto connection = session_->Prepare(deadline);
  if (!connection.ok()) return connection.status();
  OpenMemoryPage(**connection, deadline);
  if (const auto figures = (*connection)->memory().Read(device_uuid)) return FromPage(*figures);
  const absl::StatusOr<v1::GetUsageResponse> usage = session_->GetUsage(deadline);
  if (!usage.ok()) return usage.status();
  for (const v1::DeviceUsage& device : usage->usage().devices()) {
    if (device.device_uuid() != device_uuid) continue;
    const uint64_t limit = device.limit_bytes();
    return DeviceMemory{.limit_bytes = limit,
                        .free_bytes = device.has_obtainable_bytes()
                                          ? device.obtainable_bytes()
                                          : limit - std::min(limit, device.charged_bytes())};
  }
  return absl::NotFoundError(absl::StrCat("the daemon has no device \"", device_uuid, "\""));
}

}  // namespace gpumem
