// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/slices.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/json_reader.h"
#include "client/kubernetes/api/quantity.h"
#include "client/kubernetes/dra/prepare.h"
#include "client/kubernetes/gpu.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace {

constexpr size_t kMostAttribute = 64;
constexpr size_t kMostVersion = 1024;
constexpr uint64_t kMostMemory = std::numeric_limits<int64_t>::max();

// Returns what an attribute may hold of a product's name.
std::string AttributeOf(absl::string_view product) {
  std::string text(product.substr(0, kMostAttribute));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return !absl::ascii_isprint(c); }, '?');
  return text;
}

Json DeviceJson(const std::string& name, const NodeDevice& device) {
  Json attributes = {{"uuid", {{"string", device.uuid}}}, {"free", {{"int", device.free}}}};
  if (!device.product.empty()) attributes["productName"] = {{"string", device.product}};
  const std::string bytes = absl::StrCat(device.bytes);
  const std::string step = absl::StrCat(kMemoryStep >> 20, "Mi");
  // A claim that names no amount gets the whole GPU.
  const Json memory = {
      {"value", bytes},
      {"requestPolicy", {{"default", bytes}, {"validRange", {{"min", step}, {"step", step}}}}}};
  return {{"name", name},
          {"attributes", std::move(attributes)},
          {"capacity", {{"memory", memory}}},
          {"allowMultipleAllocations", true}};
}

// Returns a number that counts the bytes of a quantity; nullopt if it is none.
std::optional<uint64_t> BytesOf(const Json& object, const char* name) {
  const auto bytes = ParseQuantity(Text(object, name, kMostName));
  return bytes.ok() ? std::optional<uint64_t>(*bytes) : std::nullopt;
}

// Returns what we publish of a device, in one form: the API server writes quantities in another
// one, and may add fields.
Json Essence(const Json& device) {
  const Json& attributes = Object(device, "attributes");
  const Json& capacity = Object(device, "capacity");
  const Json& memory = Object(capacity, "memory");
  const Json& policy = Object(memory, "requestPolicy");
  const Json& range = Object(policy, "validRange");
  const auto number = [](const Json& object, const char* name) {
    const auto bytes = BytesOf(object, name);
    return bytes.has_value() ? Json(*bytes) : Json();
  };
  return {{"name", Text(device, "name", kMostName)},
          {"uuid", Text(Object(attributes, "uuid"), "string", kMostAttribute)},
          {"product", Text(Object(attributes, "productName"), "string", kMostAttribute)},
          {"free", Member(Object(attributes, "free"), "int")},
          {"attributes", attributes.size()},
          {"capacities", capacity.size()},
          {"memory", number(memory, "value")},
          {"default", number(policy, "default")},
          {"min", number(range, "min")},
          {"max", number(range, "max")},
          {"step", number(range, "step")},
          {"several", Flag(device, "allowMultipleAllocations")}};
}

bool IsSame(const Json& published, const Json& wanted) {
  return Essence(published) == Essence(wanted);
}

}  // namespace

absl::StatusOr<NodeDevices> DevicesOf(
    const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  NodeDevices result;
  if (devices.size() > kMostDevices) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "gpumemd has ", devices.size(), " devices; a slice has at most ", kMostDevices));
  }
  for (const v1::Device& device : devices) {
    if (!IsGpu(device)) continue;
    std::string name = absl::AsciiStrToLower(device.device_uuid());
    if (!IsDnsLabel(name)) {
      return absl::InvalidArgumentError("the UUID of a device is no name in Kubernetes");
    }
    const uint64_t capacity = std::min<uint64_t>(device.capacity_bytes(), kMostMemory);
    const uint64_t bytes = capacity - capacity % kMemoryStep;
    if (bytes < 2 * kMemoryStep) continue;
    const bool is_new =
        result
            .try_emplace(std::move(name), NodeDevice{.uuid = device.device_uuid(),
                                                     .product = AttributeOf(device.name()),
                                                     .bytes = bytes,
                                                     .free = bytes})
            .second;
    if (!is_new) return absl::InvalidArgumentError("two devices have the same UUID");
  }
  return result;
}

std::map<DeviceName, Gpu> GpusOf(absl::string_view node, const NodeDevices& devices) {
  std::map<DeviceName, Gpu> gpus;
  for (const auto& [name, device] : devices) {
    gpus[DeviceName(node, name)] = {.uuid = device.uuid, .bytes = device.bytes};
  }
  return gpus;
}

absl::StatusOr<std::string> NameOfSlice(absl::string_view node) {
  std::string name = absl::StrCat(node, "-", kDriverName);
  if (!IsDnsSubdomain(node)) return absl::InvalidArgumentError("the node's name is none");
  if (name.size() > kMostName) return absl::InvalidArgumentError("the node's name is too long");
  return name;
}

absl::StatusOr<std::optional<SliceStep>> PublishStep(const NodeSlice& slice,
                                                     absl::string_view published) {
  const auto name = NameOfSlice(slice.node);
  if (!name.ok()) return name.status();
  Json devices = Json::array();
  for (const auto& [device, what] : slice.devices) devices.push_back(DeviceJson(device, what));
  Json metadata = {{"name", *name}};
  if (!slice.node_uid.empty()) {
    metadata["ownerReferences"] = Json::array({{{"apiVersion", "v1"},
                                                {"kind", "Node"},
                                                {"name", slice.node},
                                                {"uid", slice.node_uid},
                                                {"controller", true}}});
  }
  int64_t generation = 1;
  const bool create = published.empty();
  if (!create) {
    const auto old = ParseJson(published, kMostText, kMostDepth);
    if (!old.ok()) return old.status();
    const Json& old_metadata = Object(*old, "metadata");
    const Json& spec = Object(*old, "spec");
    const Json& pool = Object(spec, "pool");
    // Other fields of a slice's spec, such as its node, are immutable, and another program's.
    if (Text(*old, "kind", kMostName) != "ResourceSlice" ||
        Text(old_metadata, "name", kMostName) != *name ||
        Text(spec, "driver", kMostName) != kDriverName ||
        Text(spec, "nodeName", kMostName) != slice.node ||
        Text(pool, "name", kMostName) != slice.node) {
      return absl::InvalidArgumentError(absl::StrCat("the slice ", *name, " is not of this node"));
    }
    const Json& old_devices = Array(spec, "devices");
    const Json& old_generation = Member(pool, "generation");
    if (old_generation.is_number_unsigned()) {
      const auto number = old_generation.get<uint64_t>();
      generation = static_cast<int64_t>(std::min<uint64_t>(number, kMostMemory));
    }
    const bool same =
        Member(pool, "resourceSliceCount") == 1 &&
        std::equal(old_devices.begin(), old_devices.end(), devices.begin(), devices.end(), IsSame);
    if (same) return std::nullopt;
    if (generation == std::numeric_limits<int64_t>::max()) {
      return absl::ResourceExhaustedError("the pool has no further generation");
    }
    ++generation;
    // If the object has changed meanwhile, the API server refuses this one.
    metadata["resourceVersion"] = Text(old_metadata, "resourceVersion", kMostVersion);
  }
  const Json body = {
      {"apiVersion", "resource.k8s.io/v1"},
      {"kind", "ResourceSlice"},
      {"metadata", std::move(metadata)},
      {"spec",
       {{"driver", kDriverName},
        {"nodeName", slice.node},
        {"pool", {{"name", slice.node}, {"generation", generation}, {"resourceSliceCount", 1}}},
        {"devices", std::move(devices)}}}};
  return SliceStep{.create = create, .name = *name, .body = body.dump()};
}

}  // namespace gpumem::kubernetes
