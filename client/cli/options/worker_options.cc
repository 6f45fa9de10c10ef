// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/worker_options.h"

#include "client/cli/options/common_options.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"
#include "client/mapping/kind.h"
#include "common/kind.h"

namespace gpumem::cli {
namespace {

void AddDevice(CLI::App* app, DeviceName* device) {
  app->add_option("--device", *device, "Allocate on this device, or on most-free")
      ->type_name("DEVICE");
}

}  // namespace

void AddHoldOptions(CLI::App* app, HoldCommand* command) {
  AddParsed(app, "--size", ParseSegmentSize, Into(&command->bytes),
            "Allocate segments of this size (rounded up)")
      ->type_name("BYTES");
  // Hides the flag of the same name that every command has.
  Deprecate(AddParsed(app, "--bytes", ParseSegmentSize, Into(&command->bytes), ""), "--size");
  CLI::Option* kind = AddParsed(app, "--kind", ParseKind, Into(&command->kind),
                                "Allocate this kind (default: the device's first)")
                          ->type_name(KindWords() + "|driver");
  AddDevice(app, &command->device);
  CLI::Option* count =
      app->add_option("--count", command->count, "Allocate this many segments (1-253, default: 1)")
          ->type_name("N")
          ->check(CLI::Range(1, 253).description(""));
  app->add_option("--open", command->tickets, "Open the segment of this ticket; repeatable")
      ->type_name("TICKET")
      ->allow_extra_args(false);
  app->add_flag("--read-only", command->read_only, "Map opened segments read-only");
  app->add_option("--map-device", command->map_devices, "Let this GPU use the memory; repeatable")
      ->type_name("DEVICE")
      ->allow_extra_args(false);
  app->add_flag("--show-handle", command->show_handle, "Print the CUDA IPC handle (kind ipc)");
  AddParsed(app, "--for", ParsePositiveDuration, Into(&command->duration),
            "Hold for this time (default: until a signal)")
      ->type_name("TIME");
  AddAs(app, &command->as);
  app->add_flag("--fill", command->fill, "Write to every byte");
  CLI::Option* wait = AddParsed(app, "--wait", ParseWait, Into(&command->wait),
                                "Wait up to this long for memory, or \"forever\"")
                          ->type_name("TIME");
  app->add_flag("--revocable", command->revocable,
                "Let the daemon revoke the memory (exit code 7)");
  app->parse_complete_callback([command, kind, count, wait] {
    const bool opens = !command->tickets.empty();
    const bool makes = command->bytes != 0 || kind->count() != 0 || !command->device.empty() ||
                       count->count() != 0 || wait->count() != 0;
    const auto refuse = [](bool wrong, const char* option, const char* why) {
      if (wrong) throw CLI::ValidationError(option, why);
    };
    refuse(opens && makes, "--open",
           "cannot be used with --size, --kind, --device, --count or --wait");
    refuse(!opens && command->bytes == 0, "hold",
           "nothing to hold: give --size SIZE or --open TICKET");
    refuse(!opens && command->read_only, "--read-only", "needs --open");
    const bool has_handle = internal::TraitsOf(command->kind).sharing == Sharing::kIpcHandle;
    refuse(!opens && command->show_handle && !has_handle, "--show-handle", "needs --kind ipc");
    refuse(command->fill && internal::TraitsOf(command->kind).charge_only, "--fill",
           "cannot be used with --kind driver, which gives no memory");
    refuse(command->fill && command->read_only, "--fill", "cannot be used with --read-only");
    refuse(command->fill && !command->map_devices.empty(), "--fill",
           "cannot be used with --map-device");
  });
}

void AddRunOptions(CLI::App* app, RunCommand* command) {
  app->add_option("PROGRAM", command->program, "Run this program, with its arguments")
      ->required()
      ->expected(1, 1 << 16);
  AddParsed(app, "--limit", ParseSegmentSize, Into(&command->limit),
            "Limit the program's memory on each GPU")
      ->type_name("BYTES");
  CLI::Option* need = AddParsed(app, "--need", ParseSegmentSize, Into(&command->need),
                                "Start only when so much memory is free")
                          ->type_name("BYTES");
  AddDevice(app, &command->device);
  CLI::Option* wait = AddParsed(app, "--wait", ParseWait, Into(&command->wait),
                                "Wait up to this long for --need, or \"forever\"")
                          ->type_name("TIME");
  wait->needs(need);
  app->add_option("--name", command->name, "Name the run in lists (default: a number)")
      ->type_name("NAME");
  AddParsed(app, "--mode", ParsePreload, Into(&command->mode),
            "Leave cudaMalloc to the driver, or serve it from gpumem, which can suspend it "
            "(default: as the tenant)")
      ->type_name("account|broker");
  AddAs(app, &command->as);
  AddParsed(
      app, "--via", OneOfWords({"preload", "injection"}),
      [command](const std::string& via) {
        command->via = via == "injection" ? RunVia::kInjection : RunVia::kPreload;
      },
      "Load gpumem by LD_PRELOAD (default) or the CUDA driver")
      ->type_name("preload|injection");
  app->add_flag("--quiet", command->quiet, "Do not tell at the end how much was used");
}

void AddPublishOptions(CLI::App* app, PublishCommand* command) {
  AddParsed(app, "NAME", ParsePublication, Into(&command->name),
            "Use this name: letters, digits, '.', '_' and '-'")
      ->required();
  app->add_option("--file", command->files, "Load these files; repeatable")
      ->required()
      ->type_name("PATH");
  AddParsed(
      app, "--format", OneOfWords({"auto", "bytes", "safetensors"}),
      [command](const std::string& format) {
        command->format = format == "bytes"         ? FileFormat::kBytes
                          : format == "safetensors" ? FileFormat::kSafetensors
                                                    : FileFormat::kByName;
      },
      "Read files in this format (default: by name)")
      ->type_name("auto|bytes|safetensors");
  AddDevice(app, &command->device);
  AddParsed(app, "--kind", ParseKind, Into(&command->kind),
            "Allocate this kind (default: the device's first)")
      ->type_name(ListKinds("|", "|", &KindTraits::publishable));
  app->add_flag_callback(
         "--any-tenant", [command] { command->access = PublicationAccess::kAny; },
         "Let every tenant attach (default: your own)")
      ->disable_flag_override();
  AddParsed(app, "--expire-after", ParsePositiveDuration, Into(&command->expire_after),
            "Unpublish once unattached for this long")
      ->type_name("TIME");
  app->add_flag_callback(
         "--no-checksum", [command] { command->checksum = false; },
         "Compute no checksums; verify then cannot check")
      ->disable_flag_override();
  AddAs(app, &command->as);
}

void AddFetchOptions(CLI::App* app, FetchCommand* command) {
  app->add_option("NAME", command->name, "Fetch this publication ([TENANT/]NAME)")->required();
  app->add_option("--out", command->out, "Write to this file or folder, or to stdout (-)")
      ->required()
      ->type_name("PATH");
  AddParsed(
      app, "--format", OneOfWords({"files", "safetensors"}),
      [command](const std::string& format) { command->safetensors = format == "safetensors"; },
      "Write the files that were published, or this format")
      ->type_name("files|safetensors");
  app->add_flag("--force", command->force, "Replace existing files");
  app->add_flag("--allow-dotfiles", command->allow_dotfiles,
                "Also write names that begin with '.' into folders");
  AddAs(app, &command->as);
}

void AddVerifyOptions(CLI::App* app, VerifyCommand* command) {
  app->add_option("NAME", command->name, "Verify this publication ([TENANT/]NAME)")->required();
  AddAs(app, &command->as);
}

}  // namespace gpumem::cli
