// SPDX-License-Identifier: Apache-2.0
#include "tests/kubernetes/dra_node.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/kubernetes/dra/dra_v1.grpc.pb.h"
#include "client/kubernetes/dra/pluginregistration.grpc.pb.h"
#include "client/kubernetes/reconcile.h"
#include "common/grpc_status.h"
#include "tests/kubernetes/daemon_view.h"
#include "tests/kubernetes/scheduler.h"

namespace gpumem::testing {
namespace {

using kubernetes::FakeApiServer;
using nlohmann::json;

namespace dra = ::k8s::io::kubelet::pkg::apis::dra;

constexpr char kNode[] = "node-1";

template <typename Claim>
void SetClaim(const kubernetes::ClaimName& name, Claim* claim) {
  claim->set_namespace_(name.name_space);
  claim->set_name(name.name);
  claim->set_uid(name.uid);
}

// Calls the kubelet's end of a socket.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

std::string ClaimText(const kubernetes::ClaimName& name, const std::map<std::string, uint64_t>& mib,
                      const std::string& pod, const std::string& pod_uid) {
  json results = json::array();
  for (const auto& [device, amount] : mib) {
    results.push_back({{"request", "gpu"},
                       {"driver", kubernetes::kDriverName},
                       {"pool", kNode},
                       {"device", device},
                       {"shareID", "share"},
                       {"consumedCapacity", {{"memory", absl::StrCat(amount, "Mi")}}}});
  }
  json claim = {
      {"metadata", {{"namespace", name.name_space}, {"name", name.name}, {"uid", name.uid}}}};
  claim["status"]["allocation"]["devices"]["results"] = std::move(results);
  claim["status"]["reservedFor"] =
      json::array({{{"resource", "pods"}, {"name", pod}, {"uid", pod_uid}}});
  return claim.dump();
}

std::string ClaimText(const kubernetes::ClaimName& name, const std::string& device, int mib,
                      const std::string& pod_uid) {
  return ClaimText(name, {{device, static_cast<uint64_t>(mib)}}, "pod", pod_uid);
}

absl::StatusOr<std::unique_ptr<DraNode>> DraNode::Start(const std::string& rules) {
  std::unique_ptr<DraNode> node(new DraNode);
  // Not under TEST_TMPDIR: its path is longer than a socket's name may be.
  char dir[] = "/tmp/gpumem-dra-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  node->dir_ = dir;
  std::filesystem::create_directory(node->dir_ + "/registry");
  auto daemon = DaemonProcess::Start(
      {.config = absl::StrCat("[host]\ndevices = 2\ndevice_bytes = \"1024MiB\"\n", rules,
                              "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n")});
  if (!daemon.ok()) return daemon.status();
  node->daemon_ = *std::move(daemon);
  node->certificate_ = kubernetes::MakeCertificate("localhost", "127.0.0.1");
  std::ofstream(node->dir_ + "/token") << "token";
  std::ofstream(node->dir_ + "/ca.crt") << node->certificate_.certificate;
  node->StartApiServer();
  if (absl::Status started = node->RestartDriver(); !started.ok()) return started;
  return node;
}

DraNode::~DraNode() {
  StopDriver();
  api_server_ = nullptr;
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

kubernetes::ApiServerOptions DraNode::ApiOptions() const {
  return {.host = "127.0.0.1",
          .port = port_,
          .token_file = dir_ + "/token",
          .ca_file = dir_ + "/ca.crt",
          .timeout = absl::Seconds(30)};
}

kubernetes::ViewOptions DraNode::OptionsOfView() const {
  return {
      .api_server = ApiOptions(), .driver = kubernetes::kDriverName, .node = kNode, .pool = kNode};
}

kubernetes::NodeOptions DraNode::DaemonOptionsOfNode() const {
  return {.runtime_dir = daemon_->runtime_dir(),
          .owner = kubernetes::OwnerOf(kubernetes::kDriverName, kNode)};
}

std::string DraNode::CdiFile(const std::string& claim_uid) const {
  return kubernetes::CdiFolder(dir_ + "/cdi").PathOf(claim_uid);
}

void DraNode::StopDriver() {
  channel_ = nullptr;
  server_ = nullptr;
  driver_ = nullptr;
  view_ = nullptr;
}

absl::Status DraNode::RestartDriver(absl::Duration free_pause) {
  StopDriver();
  view_ = std::make_unique<kubernetes::ClusterView>(OptionsOfView());
  driver_ = std::make_unique<kubernetes::Driver>(
      kubernetes::DriverOptions{.node = kNode,
                                .cdi_folder = dir_ + "/cdi",
                                .api_server = ApiOptions(),
                                .daemon = DaemonOptionsOfNode(),
                                .free_pause = free_pause},
      view_.get(), [this] { return Round(); });
  auto server =
      kubernetes::KubeletServer::Start({.registry = dir_ + "/registry", .folder = dir_ + "/driver"},
                                       driver_.get(), [](absl::string_view) {});
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return absl::OkStatus();
}

Child DraNode::RunProgram(const std::string& kubelet_socket) {
  if (server_ != nullptr) StopDriver();
  return Child({ProgramPath("gpumem_dra_driver"),
                "--node",
                kNode,
                "--runtime-dir",
                daemon_->runtime_dir(),
                "--kubelet-socket",
                kubelet_socket,
                "--api-server",
                absl::StrCat("https://127.0.0.1:", port_),
                "--token-file",
                dir_ + "/token",
                "--ca-file",
                dir_ + "/ca.crt",
                "--interval",
                "50ms",
                "--registry",
                dir_ + "/registry",
                "--driver-folder",
                dir_ + "/driver",
                "--cdi-folder",
                dir_ + "/cdi"});
}

absl::Status DraNode::KillAndRunDaemon() {
  daemon_->child().Signal(SIGKILL);
  if (const int code = daemon_->child().Wait(); code != 128 + SIGKILL) {
    return absl::InternalError(absl::StrCat("gpumemd has ended with ", code));
  }
  return daemon_->RunAgain();
}

absl::Status DraNode::Reboot() {
  if (server_ != nullptr) StopDriver();
  daemon_->child().Signal(SIGKILL);
  (void)daemon_->child().Wait();
  std::filesystem::remove_all(dir_ + "/cdi");
  for (const auto& entry : std::filesystem::directory_iterator(daemon_->runtime_dir())) {
    std::filesystem::remove_all(entry.path());
  }
  return daemon_->RunAgain();
}

void DraNode::StartApiServer() {
  api_server_ = std::make_unique<FakeApiServer>(certificate_, port_, &store_);
  port_ = api_server_->port();
}

absl::StatusOr<std::vector<std::string>> DraNode::Register() {
  // The kubelet looks into its folder for sockets.
  std::vector<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/registry")) {
    sockets.push_back(entry.path());
  }
  if (sockets.size() != 1) return absl::InternalError(absl::StrJoin(sockets, " "));
  const auto stub = ::pluginregistration::Registration::NewStub(ConnectTo(sockets[0]));
  grpc::ClientContext asks, tells;
  asks.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  tells.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  ::pluginregistration::PluginInfo info;
  absl::Status called = FromGrpcStatus(stub->GetInfo(&asks, {}, &info));
  if (!called.ok()) return called;
  if (info.type() != "DRAPlugin" || info.name() != "gpumem.dev") {
    return absl::InternalError(info.ShortDebugString());
  }
  channel_ = ConnectTo(info.endpoint());
  ::pluginregistration::RegistrationStatus status;
  status.set_plugin_registered(true);
  ::pluginregistration::RegistrationStatusResponse response;
  called = FromGrpcStatus(stub->NotifyRegistrationStatus(&tells, status, &response));
  if (!called.ok()) return called;
  return std::vector<std::string>(info.supported_versions().begin(),
                                  info.supported_versions().end());
}

absl::StatusOr<std::vector<std::string>> DraNode::Prepare(const kubernetes::ClaimName& name) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  dra::v1::NodePrepareResourcesRequest request;
  dra::v1::NodePrepareResourcesResponse response;
  SetClaim(name, request.add_claims());
  absl::Status called = FromGrpcStatus(
      dra::v1::DRAPlugin::NewStub(channel_)->NodePrepareResources(&context, request, &response));
  if (!called.ok()) return called;
  const auto& claim = response.claims().at(name.uid);
  if (!claim.error().empty()) return absl::FailedPreconditionError(claim.error());
  std::vector<std::string> devices;
  for (const auto& device : claim.devices()) {
    devices.insert(devices.end(), device.cdi_device_ids().begin(), device.cdi_device_ids().end());
  }
  return devices;
}

absl::Status DraNode::Unprepare(const kubernetes::ClaimName& name) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  dra::v1::NodeUnprepareResourcesRequest request;
  dra::v1::NodeUnprepareResourcesResponse response;
  SetClaim(name, request.add_claims());
  absl::Status called = FromGrpcStatus(
      dra::v1::DRAPlugin::NewStub(channel_)->NodeUnprepareResources(&context, request, &response));
  if (!called.ok()) return called;
  const std::string& error = response.claims().at(name.uid).error();
  return error.empty() ? absl::OkStatus() : absl::FailedPreconditionError(error);
}

std::string DraNode::slice() const {
  return store_.Get("resourceslices", "", absl::StrCat(kNode, "-gpumem.dev")).value_or("");
}

absl::Status DraNode::Round() {
  kubernetes::ClusterView view(OptionsOfView());
  kubernetes::Plugin plugin({.node = kNode,
                             .driver = kubernetes::kDriverName,
                             .api_server = ApiOptions(),
                             .daemon = DaemonOptionsOfNode()},
                            &view, [](absl::string_view) {});
  return plugin.Round();
}

absl::StatusOr<std::map<std::string, std::map<std::string, uint64_t>>> DraNode::Tenants() {
  auto shares = SharesOf(DaemonOptionsOfNode(), kGpuMib << 20);
  if (!shares.ok()) return shares;
  for (auto& [tenant, share] : *shares) {
    for (auto& [uuid, bytes] : share) bytes >>= 20;
  }
  return shares;
}

}  // namespace gpumem::testing
