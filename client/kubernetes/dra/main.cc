// SPDX-License-Identifier: Apache-2.0
// gpumem-dra-driver: Kubernetes' driver gpumem.dev on this node. It publishes gpumemd's GPUs,
// prepares claims for the kubelet, and makes each pod with a claim a tenant of gpumemd.
//
// Exit codes: 0 ended by a signal; 1 the kubelet's folders cannot be used; 2 wrong arguments.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/dra/driver.h"
#include "client/kubernetes/dra/kubelet_server.h"
#include "client/kubernetes/dra/prepare.h"
#include "client/kubernetes/log.h"
#include "client/kubernetes/plugin.h"
#include "client/kubernetes/program.h"
#include "common/version.h"

namespace gpumem::kubernetes {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Give pods of Kubernetes GPU memory of gpumemd (driver gpumem.dev).",
               "gpumem-dra-driver");
  ProgramOptions options;
  DriverOptions driver_options;
  KubeletServerOptions server_options;
  DeclareOptions(&app, &options);
  options.plugin.driver = kDriverName;
  app.add_option("--registry", server_options.registry, "The kubelet's folder of registrations")
      ->capture_default_str();
  app.add_option("--driver-folder", server_options.folder, "The folder of the driver's socket")
      ->capture_default_str();
  app.add_option("--cdi-folder", driver_options.cdi_folder, "The folder of CDI files")
      ->capture_default_str();
  app.add_option("--gpu-kind", driver_options.gpu_kind,
                 "The kind of the GPUs' CDI devices; none: bring no GPU into containers")
      ->capture_default_str();
  app.set_version_flag("--version", "gpumem-dra-driver " GPUMEM_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string wrong = CompleteOptions(&options); !wrong.empty()) {
    Say(absl::StrCat(wrong, "; see gpumem-dra-driver --help"));
    return 2;
  }
  driver_options.gpu_kind = UnlessNone(driver_options.gpu_kind);
  driver_options.node = options.plugin.node;
  driver_options.api_server = options.plugin.api_server;
  driver_options.daemon = options.plugin.daemon;
  // Without its socket the kubelet forgets the driver, and soon deletes the slice.
  EndAtSignal([socket = KubeletServer::RegistrationSocketOf(server_options)] {
    (void)unlink(socket.c_str());
  });
  options.view.pool = options.plugin.node;
  ClusterView view(options.view);
  Plugin plugin(options.plugin, &view, Say);
  Driver driver(driver_options, &view, [&plugin] { return plugin.Round(); });
  const auto server = KubeletServer::Start(server_options, &driver, Say);
  if (!server.ok()) {
    Say(server.status().message());
    return 1;
  }
  Say(absl::StrCat("node ", options.plugin.node, ", driver ", kDriverName, ", tenants of ",
                   options.plugin.daemon.owner));
  StartTelling(options);
  Log log(Say);
  MakeRounds(&plugin, options.pause, [&] {
    log.SayOnce("slice", std::string(driver.Publish(absl::InfiniteFuture()).message()));
    log.SayOnce("stale CDI files", std::string(driver.RemoveStaleFiles().message()));
  });
}

}  // namespace
}  // namespace gpumem::kubernetes

int main(int argc, char** argv) { return gpumem::kubernetes::Main(argc, argv); }
