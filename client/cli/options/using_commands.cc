// SPDX-License-Identifier: Apache-2.0
// The commands that use memory as a worker does: their names, texts and options.
#include "client/cli/options/command_set.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/worker_options.h"

namespace gpumem::cli {
namespace {

void AddPublications(CommandSet* commands) {
  const auto list = commands->Add<PublicationsCommand>(
      kUsing, "publications", "List publications that you may attach to.",
      "Example: gpumemctl publications\n"
      "A publication keeps its segments, and outlives its publisher unless it is\n"
      "ephemeral. Only its own tenant sees the publisher.\n"
      "Needs no privilege.");
  AddTenantFilter(list.app, &list.command->tenant);
  Deprecate(list.app->add_option("--of", list.command->tenant, ""), "--tenant");
  const auto publish = commands->Add<PublishCommand>(
      kUsing, "publish", "Load files into memory as a publication.",
      "Examples:\n  gpumemctl publish llama --file model.safetensors\n"
      "  gpumemctl publish llama --file llama/*.safetensors --device 1\n"
      "  gpumemctl publish llama --file llama/model.safetensors.index.json\n"
      "The tensors of safetensors files become arrays by name; other files are one\n"
      "array of bytes each. An index stands for its files. The memory stays until it is\n"
      "unpublished. An existing name gets a new version: both versions take memory\n"
      "until the last holder of the older one ends.\n"
      "DEVICE is as for gpumemctl hold.\n"
      "Needs no privilege.");
  AddPublishOptions(publish.app, publish.command);
  const auto fetch = commands->Add<FetchCommand>(
      kUsing, "fetch", "Write the contents of a publication to files.",
      "Examples:\n  gpumemctl fetch llama --out model.safetensors\n"
      "  gpumemctl fetch training/llama --out shards/\n"
      "  gpumemctl fetch llama --out - | sha256sum\n"
      "Verifies the bytes, too. Files are written as they were, byte for byte. Memory\n"
      "that came from no files becomes a file for each segment, or one with all arrays\n"
      "(--format safetensors). The publisher chose the names: one that begins with '.'\n"
      "is written into a folder only with --allow-dotfiles.\n"
      "Needs no privilege.");
  AddFetchOptions(fetch.app, fetch.command);
  const auto verify = commands->Add<VerifyCommand>(
      kUsing, "verify", "Check the memory of a publication for changes.",
      "Example: gpumemctl verify llama\n"
      "Reads the bytes back from the device and compares the checksum of each array.\n"
      "Lists files; with -o wide, all of their arrays. The exit code is 8 if bytes\n"
      "differ. Up to 4 MiB, xxh128sum prints the same checksum.\n"
      "Needs no privilege.");
  AddVerifyOptions(verify.app, verify.command);
  const auto unpublish = commands->Add<UnpublishCommand>(
      kUsing, "unpublish", "End a publication; attached sessions keep it.",
      "Examples:\n  gpumemctl unpublish weights             of your own tenant\n"
      "  gpumemctl unpublish training/weights    of any tenant, as an operator\n"
      "An operator is asked for confirmation on a terminal.");
  unpublish.app->add_option("NAME", unpublish.command->name, "End this publication ([TENANT/]NAME)")
      ->required();
  AddCaution(unpublish.app, &unpublish.command->caution, /*asks=*/true);
}

}  // namespace

void AddUsingCommands(CommandSet* commands) {
  const auto whoami = commands->Add<WhoamiCommand>(
      kUsing, "whoami", "Show your tenant and the rule that decides it.",
      "Example: gpumemctl whoami\n"
      "Shows also the facts that the daemon has about this process (uid, groups,\n"
      "cgroup, and the unit, container, pod or Slurm job derived from it), and why the\n"
      "rules before that one did not match.\nNeeds no privilege.");
  AddAs(whoami.app, &whoami.command->as);
  const auto hold = commands->Add<HoldCommand>(
      kUsing, "hold", "Hold memory as a worker process.",
      "Examples:\n  gpumemctl hold --size 1GiB --for 10s\n"
      "  gpumemctl hold --size 64MiB --count 4 --device most-free --as training\n"
      "  gpumemctl hold --size 64MiB --kind ipc --show-handle\n"
      "  gpumemctl hold --open TICKET --read-only\n"
      "  gpumemctl hold --size 40GiB --wait 1h --revocable\n"
      "Prints each segment with its ticket, with which another process of the tenant\n"
      "can open it. Reports on stderr if a segment is lost (gpumemctl segments --help).\n"
      "Ends after --for, or on SIGINT or SIGTERM.\n"
      "DEVICE is an index of gpumemctl devices, a UUID or its beginning, a PCI bus id,\n"
      "cuda:N for ordinal N of CUDA in this process, or most-free.\n"
      "The default is the first visible device that has the kind.\n"
      "Revocable memory may be idle memory that is guaranteed to other tenants. When\n"
      "the daemon revokes it, hold releases it and exits with 7.\n"
      "Needs no privilege.");
  AddHoldOptions(hold.app, hold.command);
  const auto run = commands->Add<RunCommand>(
      kUsing, "run", "Run a program within a quota, unchanged.",
      "Examples:\n  gpumemctl run --limit 20GiB -- python3 train.py\n"
      "  gpumemctl run --need 20GiB --wait 10m -- ./a.out --steps 100\n"
      "The program's CUDA allocations count against your tenant, and against --limit.\n"
      "Beyond that it gets CUDA's out-of-memory error. It sees its limit as the size\n"
      "of the GPU. Memory that --need has waited for is not kept for the program.\n"
      "A program that clears LD_PRELOAD, or cannot have it, needs --via injection.\n"
      "That takes CUDA_INJECTION64_PATH, which profilers use, too.\n"
      "This is no security boundary: a program can be written to avoid it.\n"
      "The exit code is the program's; 128 and the signal if one ended it.\n"
      "Needs no privilege.");
  AddRunOptions(run.app, run.command);
  AddPublications(commands);
}

}  // namespace gpumem::cli
