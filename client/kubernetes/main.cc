// SPDX-License-Identifier: Apache-2.0
// gpumem-kubelet-plugin: makes each pod of this node that has a share of a GPU's memory a tenant of
// gpumemd.
//
// Exit codes: 0 ended by a signal, or --once without an error; 1 --once failed; 2 wrong arguments.
#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/facts/fact_teller.h"
#include "client/kubernetes/plugin.h"
#include "client/kubernetes/program.h"
#include "common/version.h"

namespace gpumem::kubernetes {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Make each pod of this node that has a share of a GPU's memory a tenant of gpumemd.",
               "gpumem-kubelet-plugin");
  ProgramOptions options;
  bool once = false;
  options.plugin.driver = "gpu.nvidia.com";
  DeclareOptions(&app, &options);
  app.add_option("--driver", options.plugin.driver, "The driver whose devices are GPUs")
      ->capture_default_str();
  app.add_flag("--once", once, "Make one round, then exit");
  app.set_version_flag("--version", "gpumem-kubelet-plugin " GPUMEM_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string wrong = CompleteOptions(&options); !wrong.empty()) {
    Say(absl::StrCat(wrong, "; see gpumem-kubelet-plugin --help"));
    return 2;
  }
  EndAtSignal([] {});
  ClusterView view(options.view);
  Plugin plugin(options.plugin, &view, Say);
  if (once) {
    const bool told =
        FactTeller(options.facts, Say).Tell().ok() || options.facts.source == FactSource::kOff;
    return plugin.Round().ok() && told ? 0 : 1;  // they have said what failed
  }
  Say(absl::StrCat("node ", options.plugin.node, ", tenants of ", options.plugin.daemon.owner));
  StartTelling(options);
  MakeRounds(&plugin, options.pause, [] {});
}

}  // namespace
}  // namespace gpumem::kubernetes

int main(int argc, char** argv) { return gpumem::kubernetes::Main(argc, argv); }
