// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/objects.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/quantity.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostUuid = 64;
constexpr size_t kMostProblems = 16;
// The sums of a claim's shares stay below this: no sum of a pod's claims overflows.
constexpr uint64_t kMostBytes = uint64_t{1} << 54;

// Returns the member of this name, or of the name with the driver's domain in front.
const Json& Qualified(const Json& object, absl::string_view driver, const char* name) {
  const Json& plain = Member(object, name);
  return plain.is_null() ? Member(object, absl::StrCat(driver, "/", name).c_str()) : plain;
}

absl::StatusOr<uint64_t> QuantityOf(const Json& value) {
  if (value.is_string()) return ParseQuantity(value.get_ref<const std::string&>());
  // Kubernetes writes quantities as texts, and reads whole numbers as well.
  if (value.is_number_unsigned()) return ParseQuantity(absl::StrCat(value.get<uint64_t>()));
  return absl::InvalidArgumentError("a quantity is neither text nor whole number");
}

// Adds what the result of an allocation gives. Returns why it makes no sense, or "".
std::string AddResult(const Json& result, absl::string_view driver, Claim* claim) {
  DeviceName device(Text(result, "pool", kMostName), Text(result, "device", kMostName));
  if (device.first.empty() || device.second.empty()) return "a device has no name";
  if (Flag(result, "adminAccess")) return "";
  const std::string request = Text(result, "request", kMostName);
  if (!request.empty()) claim->requests[device].insert(request);
  const Json& consumed = Member(result, "consumedCapacity");
  // Devices that several claims may have, have an ID for each share.
  if (consumed.is_null() && Member(result, "shareID").is_null()) {
    claim->whole.push_back(std::move(device));
    return "";
  }
  const Json& memory = Qualified(consumed, driver, "memory");
  if (memory.is_null()) {
    return absl::StrCat("its share of device ", device.second, " states no memory");
  }
  const auto bytes = QuantityOf(memory);
  if (!bytes.ok()) return std::string(bytes.status().message());
  uint64_t& sum = claim->shares[std::move(device)];
  if (*bytes > kMostBytes || sum + *bytes > kMostBytes) return "it has more memory than there is";
  sum += *bytes;
  return "";
}

// A device's UUID: what gpumemd calls it. Empty if the text is none.
std::string UuidOf(const Json& attributes, absl::string_view driver) {
  std::string uuid = Text(Qualified(attributes, driver, "uuid"), "string", kMostUuid);
  for (const char c : uuid) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') return "";
  }
  return uuid;
}

}  // namespace

std::optional<Claim> ReadClaim(const Json& object, absl::string_view driver,
                               absl::string_view pool) {
  const Json& status = Object(object, "status");
  const Json& results = Array(Object(Object(status, "allocation"), "devices"), "results");
  Claim claim;
  bool ours = false;
  if (results.size() > kMostResults) claim.problem = "it has too many devices";
  for (size_t i = 0; i < results.size() && i < kMostResults; ++i) {
    if (Text(results[i], "driver", kMostName) != driver) continue;
    if (!pool.empty() && Text(results[i], "pool", kMostName) != pool) continue;
    ours = true;
    const std::string problem = AddResult(results[i], driver, &claim);
    if (claim.problem.empty()) claim.problem = problem;
  }
  // Of a claim that is too long, the driver may come after what was read.
  if (!ours && claim.problem.empty()) return std::nullopt;
  const Json& metadata = Object(object, "metadata");
  claim.name_space = Text(metadata, "namespace", kMostName);
  claim.name = Text(metadata, "name", kMostName);
  claim.uid = Text(metadata, "uid", kMostName);
  const Json& reserved = Array(status, "reservedFor");
  if (reserved.size() > kMostReserved) claim.problem = "it is reserved for too many pods";
  for (const Json& consumer : reserved) {
    if (claim.consumers.size() == kMostReserved) break;
    if (Text(consumer, "resource", kMostName) != "pods" ||
        !Text(consumer, "apiGroup", kMostName).empty()) {
      continue;
    }
    Consumer pod{Text(consumer, "uid", kMostName), Text(consumer, "name", kMostName)};
    if (pod.uid.empty() || pod.name.empty()) {
      claim.problem = "a pod of it has no name or uid";
    } else {
      claim.consumers.push_back(std::move(pod));
    }
  }
  return claim;
}

std::optional<Slice> ReadSlice(const Json& object, absl::string_view driver) {
  const Json& spec = Object(object, "spec");
  const Json& pool = Object(spec, "pool");
  Slice slice{.pool = Text(pool, "name", kMostName)};
  if (Text(spec, "driver", kMostName) != driver || slice.pool.empty()) return std::nullopt;
  const Json& generation = Member(pool, "generation");
  if (generation.is_number_integer()) slice.generation = generation.get<int64_t>();
  const auto add_problem = [&](std::string problem) {
    if (slice.problems.size() < kMostProblems) slice.problems.push_back(std::move(problem));
  };
  for (const Json& device : Array(spec, "devices")) {
    if (slice.gpus.size() == kMostSliceDevices) {
      add_problem(absl::StrCat("a slice of pool ", slice.pool, " has too many devices"));
      break;
    }
    const std::string name = Text(device, "name", kMostName);
    // v1beta1 has a level more.
    const Json& basic = Member(device, "basic");
    const Json& body = basic.is_object() ? basic : device;
    Gpu gpu{.uuid = UuidOf(Object(body, "attributes"), driver)};
    if (name.empty() || gpu.uuid.empty()) {
      add_problem(absl::StrCat("device \"", name, "\" of pool ", slice.pool,
                               " has no name or no attribute \"uuid\""));
      continue;
    }
    const Json& memory = Member(Qualified(Object(body, "capacity"), driver, "memory"), "value");
    if (!memory.is_null()) {
      const auto bytes = QuantityOf(memory);
      if (bytes.ok()) gpu.bytes = *bytes;
      if (!bytes.ok()) add_problem(absl::StrCat("device ", name, ": ", bytes.status().message()));
    }
    slice.gpus[name] = std::move(gpu);
  }
  return slice;
}

SliceList MergeSlices(absl::Span<const Slice> slices) {
  std::map<std::string, int64_t> newest;  // generation of each pool
  for (const Slice& slice : slices) {
    int64_t& most = newest.try_emplace(slice.pool, slice.generation).first->second;
    most = std::max(most, slice.generation);
  }
  SliceList list;
  for (const Slice& slice : slices) {
    if (slice.generation != newest[slice.pool]) continue;
    for (const auto& [name, gpu] : slice.gpus) list.gpus[DeviceName(slice.pool, name)] = gpu;
    for (const std::string& problem : slice.problems) {
      if (list.problems.size() < kMostProblems) list.problems.push_back(problem);
    }
  }
  return list;
}

}  // namespace gpumem::kubernetes
