// SPDX-License-Identifier: Apache-2.0
// install.sh --systemd, where systemd runs: it installs and starts the service, an upgrade keeps
// the memory, and nothing of it stays after --uninstall. The release is made of this tree's
// programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/daemon_process.h"
#include "tests/support/systemd_machine.h"

namespace gpumem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::SystemdMachine;

constexpr char kUnits[] =
    "gpumemd.service gpumemd-session.socket gpumemd-admin.socket gpumemd-view.socket";

// Runs inside: makes the places writable where install.sh writes; $1 is the folder. The machine's
// files stay as they are. systemd reads the units that install.sh writes, and those of the test.
constexpr char kPlaces[] = R"sh(
set -e
mkdir "$1/etc"
mount -t tmpfs -o mode=755 tmpfs "$1/etc"
mkdir "$1/etc/upper" "$1/etc/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc/upper,workdir=$1/etc/work" /etc
mount --bind "$1/units" /etc/systemd/system
for folder in /opt /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
)sh";

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class InstallUnderSystemd : public ::testing::Test {
 protected:
  void SetUp() override {
    auto booted = SystemdMachine::Boot();
    if (absl::IsFailedPrecondition(booted.status())) GTEST_SKIP() << booted.status().message();
    ASSERT_TRUE(booted.ok()) << booted.status();
    machine_ = *std::move(booted);
    const auto placed = machine_->Run({"/bin/sh", "-c", kPlaces, "places", machine_->folder()});
    if (placed.code != 0) {
      GTEST_SKIP() << "this machine does not let the test lay files over its own: "
                   << placed.output;
    }
    fs::create_directories(machine_->folder() + "/units/gpumemd.service.d");
    std::ofstream(machine_->folder() + "/units/gpumemd.service.d/test.conf")
        << "[Service]\nStandardError=append:" << machine_->folder() << "/log\n";
  }

  // Makes a release of these programs in the folder NAME.
  void MakeRelease(const std::string& name) const {
    const std::string release = absl::StrCat(machine_->folder(), "/", name);
    for (const char* each : {"/bin", "/etc", "/include", "/lib/pkgconfig", "/licenses",
                             "/share/gpumem/systemd/drop-ins"}) {
      fs::create_directories(release + each);
    }
    for (const char* each : {"gpumemd", "gpumemctl"}) {
      fs::copy_file(testing::ProgramPath(each), absl::StrCat(release, "/bin/", each));
    }
    for (const auto& each : fs::directory_iterator("deploy/systemd")) {
      if (!each.is_regular_file()) continue;
      fs::copy_file(each.path(),
                    release + "/share/gpumem/systemd/" + each.path().filename().string());
    }
    fs::copy_file("deploy/tarball/install.sh", release + "/install.sh");
    fs::copy_file("deploy/tarball/install_checks.sh", release + "/share/gpumem/install_checks.sh");
    fs::copy_file("deploy/gpumemd.toml", release + "/etc/gpumemd.toml");
    std::ofstream(release + "/lib/pkgconfig/gpumem.pc") << "Version: " << name << "\n";
    std::ofstream(release + "/LICENSE") << "terms\n";
  }

  // Runs a command inside, and fails the test with all logs if it fails. Returns its output.
  std::string Succeed(const std::string& command) const {
    const auto done = machine_->Run(
        {"/bin/sh", "-c", absl::StrCat("export TMPDIR=", machine_->folder(), "; ", command)});
    EXPECT_EQ(done.code, 0) << command << "\n"
                            << done.output << machine_->Log()
                            << ReadFile(machine_->folder() + "/log");
    return done.output;
  }

  std::string Install(const std::string& release) const {
    return Succeed(
        absl::StrCat(machine_->folder(), "/", release, "/install.sh --prefix /opt/gpumem"));
  }

  std::unique_ptr<SystemdMachine> machine_;
};

TEST_F(InstallUnderSystemd, InstallsUpgradesAndRemovesTheService) {
  MakeRelease("1.0");
  MakeRelease("2.0");
  const std::string before =
      Succeed("find /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d | sort");
  EXPECT_THAT(Install("1.0"), HasSubstr("it runs as gpumemd.service"));
  Succeed(absl::StrCat("systemctl is-active ", kUnits));
  // `systemctl is-enabled` looks in the folder by its other name.
  Succeed("test -L /etc/systemd/system/multi-user.target.wants/gpumemd.service");
  Succeed("test -L /etc/systemd/system/sockets.target.wants/gpumemd-session.socket");
  Succeed("getent passwd gpumem");
  Succeed("head -c 1000000 /dev/urandom >$TMPDIR/model.bin");
  Succeed("/opt/gpumem/bin/gpumemctl publish weights --file $TMPDIR/model.bin");

  const std::string pid = machine_->Property("gpumemd", "MainPID");
  const std::string socket = machine_->Property("gpumemd-session.socket", "ActiveEnterTimestamp");
  EXPECT_THAT(Install("2.0"), HasSubstr("gpumem 2.0 is installed"));
  EXPECT_NE(machine_->Property("gpumemd", "MainPID"), pid);
  EXPECT_EQ(machine_->Property("gpumemd-session.socket", "ActiveEnterTimestamp"), socket);
  Succeed("/opt/gpumem/bin/gpumemctl verify weights");

  Succeed("/opt/gpumem/share/gpumem/install.sh --uninstall");
  EXPECT_EQ(machine_->Property("gpumemd", "ActiveState"), "inactive");
  EXPECT_EQ(Succeed("find /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d | sort"), before);
  EXPECT_EQ(Succeed("find /opt -mindepth 1; find /run/gpumem -type s"), "");
}

}  // namespace
}  // namespace gpumem
