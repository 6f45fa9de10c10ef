// SPDX-License-Identifier: Apache-2.0
// gpumem-device-plugin: the kubelet's device plug-in for memory of GPUs. It offers gpumemd's GPUs
// in units, and makes each pod with units a tenant of gpumemd.
//
// Exit codes: 0 ended by a signal; 2 wrong arguments.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/kubernetes/device_plugin/device_plugin_server.h"
#include "client/kubernetes/device_plugin/unit_rounds.h"
#include "client/kubernetes/program.h"
#include "common/version.h"

namespace gpumem::kubernetes {
namespace {

// Of tenants, whatever the resource is called: names and steps may change.
constexpr char kDriver[] = "gpumem.dev/memory";
constexpr absl::Duration kLook = absl::Milliseconds(500);

struct Options {
  ProgramOptions program;
  UnitRoundsOptions rounds;
  DevicePluginOptions server;
  std::string step = NameOfStep(kDefaultStep);
  std::string resource;
  std::string grace = "10s";
};

void Declare(CLI::App* app, Options* options) {
  options->program.timeout = "10s";
  DeclareOptions(app, &options->program);
  options->program.plugin.driver = kDriver;
  app->add_option("--step", options->step, "The memory of a unit: whole MiB")
      ->capture_default_str();
  app->add_option("--resource", options->resource,
                  "The resource's name (gpumem.dev/memory- and the step)");
  app->add_option("--device-plugin-folder", options->server.folder,
                  "The kubelet's folder of device plug-ins")
      ->capture_default_str();
  app->add_option("--gpu-kind", options->server.grant.gpu_kind,
                  "The kind of the GPUs' CDI devices; none: bring no GPU into containers")
      ->capture_default_str();
  app->add_flag("--visible-devices", options->server.grant.visible_devices,
                "Name GPUs in NVIDIA_VISIBLE_DEVICES, for NVIDIA's runtime");
  app->add_flag("--one-gpu", options->server.grant.one_gpu,
                "Refuse a container units of several GPUs if one could have all");
  app->add_option("--grace", options->grace,
                  "How long gpumemd may be away before its GPUs are unhealthy")
      ->capture_default_str();
  app->set_version_flag("--version", "gpumem-device-plugin " GPUMEM_VERSION);
}

// Returns the mistake, or "".
std::string Complete(Options* options) {
  if (std::string wrong = CompleteOptions(&options->program); !wrong.empty()) return wrong;
  options->server.grant.gpu_kind = UnlessNone(options->server.grant.gpu_kind);
  const PluginOptions& node = options->program.plugin;
  if (node.kubelet_socket.empty()) return "--kubelet-socket: the kubelet has to be asked";
  if (!absl::StartsWith(node.daemon.runtime_dir, "/")) return "--runtime-dir: no absolute path";
  const auto step = ParseStep(options->step);
  if (!step.ok()) return absl::StrCat("--step: ", step.status().message());
  if (options->resource.empty()) options->resource = ResourceOf(*step);
  if (!IsResourceName(options->resource)) return "--resource: no name, such as example.com/name";
  if (!absl::ParseDuration(options->grace, &options->rounds.grace) ||
      options->rounds.grace < absl::ZeroDuration()) {
    return "--grace: no time, such as 10s";
  }
  options->rounds.node = node;
  options->rounds.step = *step;
  options->rounds.resource = options->resource;
  options->server.resource = options->resource;
  options->server.grant.runtime_dir = node.daemon.runtime_dir;
  return "";
}

int Main(int argc, char** argv) {
  CLI::App app("Offer memory of gpumemd's GPUs to pods of Kubernetes, as a device plug-in.",
               "gpumem-device-plugin");
  Options options;
  Declare(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string wrong = Complete(&options); !wrong.empty()) {
    Say(absl::StrCat(wrong, "; see gpumem-device-plugin --help"));
    return 2;
  }
  EndAtSignal(
      [socket = absl::StrCat(options.server.folder, "/", DevicePluginServer::SocketName())] {
        (void)unlink(socket.c_str());
      });
  Say(absl::StrCat("node ", options.rounds.node.node, ", resource ", options.resource, " of ",
                   NameOfStep(options.rounds.step), ", tenants of ",
                   options.rounds.node.daemon.owner));
  StartTelling(options.program);
  UnitBoard board;
  UnitRounds rounds(options.rounds, &board, Say);
  Registrar registrar(
      options.server, &board,
      [&](absl::Span<const std::string> ids, const std::function<bool()>& cancelled,
          absl::Time deadline) { return rounds.Prepare(ids, cancelled, deadline); },
      Say);
  // A kubelet that hangs holds up no round.
  const std::thread registration([&] {
    while (true) {
      registrar.Look();
      absl::SleepFor(kLook);
    }
  });
  for (bool first = true;; first = false) {
    (void)rounds.Round();
    if (first) NotifyReady();
    const absl::Time next = absl::Now() + options.program.pause;
    do {
      absl::SleepFor(std::min(kLook, std::max(next - absl::Now(), absl::ZeroDuration())));
    } while (absl::Now() < next && !rounds.PodsHaveChanged());
  }
}

}  // namespace
}  // namespace gpumem::kubernetes

int main(int argc, char** argv) { return gpumem::kubernetes::Main(argc, argv); }
