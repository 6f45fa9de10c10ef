// SPDX-License-Identifier: Apache-2.0
// The units of the package under the machine's real systemd: in their sandbox, the programs reach
// gpumemd, the kubelet and the API server, and write what they have to.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/kubernetes/dra/dra_v1.grpc.pb.h"
#include "client/kubernetes/api/testing/fake_api_server.h"
#include "client/kubernetes/testing/fake_kubelet.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/installed_service.h"

namespace gpumem::testing {
namespace {

namespace fs = std::filesystem;
namespace dra = ::k8s::io::kubelet::pkg::apis::dra::v1;
using ::testing::HasSubstr;

constexpr char kUnits[] = "deploy/kubernetes/systemd/";
constexpr char kClaim[] = "c1000000-2a99-45ad-af94-d91eb81a87e9";
constexpr char kPod[] = "0a000000-2a99-45ad-af94-d91eb81a87e9";
constexpr char kPodOfPlugin[] = "0b000000-2a99-45ad-af94-d91eb81a87e9";
constexpr int kPort = 6443;

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto service = InstalledService::Install(
        {.config = "[host]\ndevices = 1\ndevice_bytes = \"1024MiB\"\n"
                   "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n"});
    if (absl::IsFailedPrecondition(service.status())) GTEST_SKIP() << service.status().message();
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    for (const char* name : {"gpumem-kubelet-plugin", "gpumem-dra-driver"}) {
      const std::string unit = absl::StrCat(name, ".service");
      fs::copy_file(ProgramPath(absl::StrReplaceAll(name, {{"-", "_"}})),
                    absl::StrCat(folder(), "/root/usr/sbin/", name));
      service_->machine().WriteUnit(unit, Read(kUnits + unit));
      fs::create_directories(absl::StrCat(folder(), "/units/", unit, ".d"));
      service_->machine().WriteUnit(
          absl::StrCat(unit, ".d/test.conf"),
          // Device files cannot be made in such a machine.
          absl::StrCat("[Service]\nPrivateDevices=no\nStandardError=append:", folder(), "/", name,
                       ".log\n"));
    }
    fs::create_directories(folder() + "/config/kubernetes");
    std::ofstream(folder() + "/config/kubernetes.env")
        << "API_SERVER=https://127.0.0.1:" << kPort
        << "\nNODE_NAME=node-1\nOPTIONS=--interval 1s\n";
    service_->machine().WriteUnit(
        "cluster.service",
        absl::StrCat("[Service]\nExecStart=", fs::read_symlink("/proc/self/exe").string(),
                     " --role cluster ", folder(), "\n"));
    ASSERT_EQ(Shell("mkdir -p /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins "
                    "/var/lib/kubelet/pod-resources"),
              "");
    ASSERT_EQ(service_->Systemctl({"start", "cluster", "gpumemd"}).code, 0);
    ASSERT_TRUE(Eventually([&] { return fs::exists(folder() + "/ready"); }));
  }
  const std::string& folder() const { return service_->machine().folder(); }
  std::string Shell(const std::string& script) const { return service_->Shell(script).output; }
  std::string Tenants() const {
    return Shell(absl::StrCat(fs::absolute(ProgramPath("gpumemctl")).string(), " tenant list"));
  }
  void Start(const std::string& unit) const {
    const auto started = service_->Systemctl({"start", unit});
    ASSERT_EQ(started.code, 0) << service_->machine().Property(unit, "ExecMainStatus") << ": "
                               << started.output << service_->machine().Log()
                               << Read(absl::StrCat(folder(), "/", unit, ".log"));
    EXPECT_THAT(Shell(absl::StrCat("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/$(systemctl "
                                   "show -P MainPID ",
                                   unit, ")/status")),
                ::testing::AllOf(HasSubstr("CapEff:\t0000000000000000"),
                                 HasSubstr("CapBnd:\t0000000000000000"), HasSubstr("Seccomp:\t2"),
                                 HasSubstr("NoNewPrivs:\t1")));
  }

  std::unique_ptr<InstalledService> service_;
};

TEST_F(ServiceTest, ThePluginMakesTenants) {
  Start("gpumem-kubelet-plugin");
  EXPECT_THAT(Tenants(), HasSubstr(absl::StrCat("pod-", kPodOfPlugin)))
      << Read(folder() + "/gpumem-kubelet-plugin.log");
}

TEST_F(ServiceTest, TheDriverServesTheKubelet) {
  Start("gpumem-kubelet-plugin");
  Start("gpumem-dra-driver");
  EXPECT_NE(service_->Systemctl({"is-active", "gpumem-kubelet-plugin"}).code, 0) << "one of both";
  EXPECT_THAT(Shell("stat -c '%n %a %F' /var/lib/kubelet/plugins_registry/* "
                    "/var/lib/kubelet/plugins/gpumem.dev"),
              ::testing::AllOf(HasSubstr("gpumem.dev-reg.sock"), HasSubstr("gpumem.dev 700 ")));
  const auto prepared = service_->Role({"prepare"});
  EXPECT_EQ(prepared.code, 0) << prepared.output << Read(folder() + "/gpumem-dra-driver.log");
  EXPECT_THAT(Tenants(), HasSubstr(absl::StrCat("pod-", kPod)));
  const std::string file = absl::StrCat("/run/cdi/gpumem.dev-claim_", kClaim, ".json");
  EXPECT_EQ(Shell(absl::StrCat("stat -c '%a %U' /run/cdi ", file)), "755 root\n644 root\n");

  // A restart keeps them; the end removes the socket by which the kubelet would ask.
  EXPECT_EQ(service_->Systemctl({"restart", "gpumem-dra-driver"}).code, 0);
  EXPECT_EQ(Shell(absl::StrCat("stat -c %a ", file)), "644\n");
  EXPECT_EQ(service_->Systemctl({"stop", "gpumem-dra-driver"}).code, 0);
  EXPECT_EQ(Shell("ls /var/lib/kubelet/plugins_registry"), "");
  EXPECT_EQ(Shell(absl::StrCat("stat -c %a ", file)), "644\n");
}

// Inside: the API server and the kubelet.
int RunCluster(const std::string& folder) {
  const kubernetes::Certificate certificate = kubernetes::MakeCertificate("localhost", "127.0.0.1");
  std::ofstream(folder + "/config/kubernetes/token") << "token";
  std::ofstream(folder + "/config/kubernetes/ca.crt") << certificate.certificate;
  fs::permissions(folder + "/config/kubernetes/token", fs::perms::owner_read);
  kubernetes::FakeStore store;
  constexpr char kUuid[] = "HOST-00000000-0000-0000-0000-000000000000";
  store.SetSlices({absl::StrCat(
      R"({"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": {"name": "node-1",
          "generation": 1}, "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": ")",
      kUuid, R"("}}, "capacity": {"memory": {"value": "1Gi"}}}]}})")});
  const std::string ours =
      ClaimText({"team", "one", kClaim}, "host-00000000-0000-0000-0000-000000000000", 64, kPod);
  const std::string theirs = absl::StrReplaceAll(
      ClaimText({"team", "two", "c2000000-2a99-45ad-af94-d91eb81a87e9"}, "gpu-0", 32, kPodOfPlugin),
      {{"gpumem.dev", "gpu.nvidia.com"}});
  store.SetClaims({ours, theirs});
  kubernetes::FakeApiServer api_server(certificate, kPort, &store);
  const kubernetes::FakeKubelet kubelet("/var/lib/kubelet/pod-resources/kubelet.sock");
  fs::permissions("/var/lib/kubelet/pod-resources/kubelet.sock",
                  fs::perms::owner_read | fs::perms::owner_write);
  std::ofstream(folder + "/ready") << "";
  while (true) pause();
}

// Inside: a call of the kubelet.
int Prepare() {
  const auto channel = grpc::CreateChannel("unix:/var/lib/kubelet/plugins/gpumem.dev/dra.sock",
                                           grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  dra::NodePrepareResourcesRequest request;
  dra::NodePrepareResourcesResponse response;
  auto* const claim = request.add_claims();
  claim->set_namespace_("team");
  claim->set_name("one");
  claim->set_uid(kClaim);
  const grpc::Status called =
      dra::DRAPlugin::NewStub(channel)->NodePrepareResources(&context, request, &response);
  std::cout << called.error_message() << response.ShortDebugString() << "\n";
  return called.ok() && response.claims().at(kClaim).error().empty() ? 0 : 1;
}

}  // namespace
}  // namespace gpumem::testing

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() > 3 && words[1] == "--role") return gpumem::testing::RunCluster(words[3]);
  if (words.size() > 2 && words[1] == "--role") return gpumem::testing::Prepare();
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
