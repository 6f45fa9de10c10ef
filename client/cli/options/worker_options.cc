#include "client/cli/options/worker_options.h"

#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"
#include "client/session/kind.h"
#include "common/kind.h"

namespace gpumem::cli {
namespace {

void AddTenant(CLI::App* app, std::string* tenant) {
  app->add_option("--tenant", *tenant, "Ask to be this tenant")->type_name("NAME");
}

void AddDevice(CLI::App* app, DeviceName* device) {
  app->add_option("--device", *device,
                  "The device: its UUID, its PCI bus id, or its ordinal as this process sees it "
                  "(CUDA_VISIBLE_DEVICES), which need not be its place in the daemon's list; or "
                  "most-free (default: the first that this process sees that makes the kind)")
      ->type_name("DEVICE");
}

}  // namespace

void AddHoldOptions(CLI::App* app, HoldCommand* command) {
  AddParsed(app, "--bytes", ParseSegmentSize, Into(&command->bytes),
            "The size of each segment, rounded up to what the device can do")
      ->type_name("BYTES");
  CLI::Option* kind = AddParsed(app, "--kind", ParseKind, Into(&command->kind),
                                "How it is made (default: the device's first kind)")
                          ->type_name(KindWords());
  AddDevice(app, &command->device);
  CLI::Option* count = app->add_option("--count", command->count, "How many segments (default: 1)")
                           ->type_name("N")
                           ->check(CLI::Range(1, 253));
  app->add_option("--open", command->tickets,
                  "Instead of new segments: the one of this ticket; may be given several times")
      ->type_name("TICKET")
      ->allow_extra_args(false);
  app->add_flag("--read-only", command->read_only, "Map what is opened without the right to write");
  app->add_option("--map-device", command->map_devices,
                  "A GPU that shall use the memory (default: its own); may be given several "
                  "times")
      ->type_name("DEVICE")
      ->allow_extra_args(false);
  app->add_flag("--show-handle", command->show_handle,
                "Print the cudaIpcMemHandle_t of segments of kind ipc");
  AddParsed(app, "--for", ParsePositiveDuration, Into(&command->duration),
            "How long (default: until a signal)")
      ->type_name("TIME");
  AddTenant(app, &command->tenant);
  app->add_flag("--fill", command->fill, "Write to every byte");
  CLI::Option* wait =
      AddParsed(app, "--wait", ParseWait, Into(&command->wait),
                "Wait for memory that others hold, so long at most or \"forever\" (default: not)")
          ->type_name("TIME");
  app->add_flag("--revocable", command->revocable,
                "The memory may be taken back, and may be what is guaranteed to others and idle: "
                "then it is released, and the exit code is 7");
  app->parse_complete_callback([command, kind, count, wait] {
    const bool opens = !command->tickets.empty();
    const bool makes = command->bytes != 0 || kind->count() != 0 || !command->device.empty() ||
                       count->count() != 0 || wait->count() != 0;
    const auto refuse = [](bool wrong, const char* option, const char* why) {
      if (wrong) throw CLI::ValidationError(option, why);
    };
    refuse(opens && makes, "--open",
           "--bytes, --kind, --device, --count and --wait are for new segments");
    refuse(!opens && command->bytes == 0, "hold",
           "nothing to hold: say --bytes SIZE, or --open TICKET");
    refuse(!opens && command->read_only, "--read-only", "only for segments that --open opens");
    const bool has_handle = internal::TraitsOf(command->kind).sharing == Sharing::kIpcHandle;
    refuse(!opens && command->show_handle && !has_handle, "--show-handle",
           "only segments of --kind ipc have a handle");
    refuse(command->fill && command->read_only, "--fill", "not with --read-only");
    refuse(command->fill && !command->map_devices.empty(), "--fill", "not with --map-device");
  });
}

void AddPublishOptions(CLI::App* app, PublishCommand* command) {
  AddParsed(app, "NAME", ParsePublication, Into(&command->name),
            "The publication: 1 to 64 letters, digits, '.', '_' and '-'")
      ->required();
  app->add_option("--file", command->files,
                  "The file to load; may be given several times, or with several files")
      ->required()
      ->type_name("PATH");
  AddDevice(app, &command->device);
  AddParsed(app, "--kind", ParseKind, Into(&command->kind),
            "How its memory is made (default: the device's first kind); pinned is host memory")
      ->type_name(ListKinds("|", "|", &KindTraits::publishable));
  app->add_flag_callback(
         "--any-tenant", [command] { command->access = PublicationAccess::kAny; },
         "Let every tenant attach to it (default: its own)")
      ->disable_flag_override();
  AddParsed(app, "--expire-after", ParsePositiveDuration, Into(&command->expire_after),
            "End it once nobody has been attached for so long (default: never)")
      ->type_name("TIME");
  app->add_flag_callback(
         "--no-checksum", [command] { command->checksum = false; },
         "Compute none: for files that are in the page cache, and then verify cannot tell")
      ->disable_flag_override();
  AddTenant(app, &command->tenant);
}

void AddFetchOptions(CLI::App* app, FetchCommand* command) {
  app->add_option("NAME", command->name, "The publication; TENANT/NAME: another tenant's")
      ->required();
  app->add_option("--out", command->out,
                  "The file to write, or the folder to write files to; \"-\": stdout")
      ->required()
      ->type_name("PATH");
  app->add_flag("--force", command->force, "Replace files that are there");
  app->add_flag("--allow-dotfiles", command->allow_dotfiles,
                "Write also files whose names begin with '.' into a folder");
  AddTenant(app, &command->tenant);
}

void AddVerifyOptions(CLI::App* app, VerifyCommand* command) {
  app->add_option("NAME", command->name, "The publication; TENANT/NAME: another tenant's")
      ->required();
  AddTenant(app, &command->tenant);
}

}  // namespace gpumem::cli
