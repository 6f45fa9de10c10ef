// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/options/command_set.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/help.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/suggestions.h"
#include "client/cli/options/values.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

constexpr char kFooter[] = R"(
Examples:
  gpumemctl devices                       list GPUs and their use
  gpumemctl map                           show who holds which part of them
  gpumemctl events --follow               watch events
  gpumemctl doctor                        check this machine and its daemon
  gpumemctl quota get                     show your limits and usage
  gpumemctl hold --size 1GiB --for 10s    hold memory for ten seconds
  gpumemctl publish llama --file m.bin    load a model once, for all workers
  gpumemctl segments -o json              print JSON for programs

These commands need no privilege: devices, whoami, hold, doctor, web,
publications, publish, fetch, verify, unpublish, and quota get without a tenant.
The others use the admin socket: they are for root, the user that runs the
daemon, and the members of the daemon's admin group. The members of its view
group can use those that show something.

--tenant shows only what belongs to a tenant; --as asks the daemon to treat this
process as one. A device is an index of gpumemctl devices, a UUID or its
beginning, or a PCI bus id, in every command.

Without --runtime-dir the folder of the daemon's sockets is $GPUMEM_RUNTIME_DIR,
else this user's own, else /run/gpumem.

Commands that take something from others ask for confirmation if standard input
and standard error are terminals. --yes answers the question, --dry-run shows
the effects and changes nothing.

With -o json a command prints one JSON object (hold, top and events: one on each
line) with the protocol's field names. Its schema_version is 1. Sizes are bytes,
durations milliseconds, absent limits null. Errors are
{"error": {"code", "message", "denial"}} on stderr.

Exit codes:
  0  success
  1  refused by the daemon for another reason, or failed here
  2  invalid command line
  3  the daemon is unreachable or is shutting down
  4  permission denied
  5  a quota or the device is exhausted
  6  no such tenant, device, pool, ticket, publication or file
  7  the held memory was revoked (hold --revocable)
  8  the memory differs from what was published (verify, fetch)
  9  a problem was found (doctor))";

// The parameters of gpumemctl help.
struct HelpRequest {
  const CLI::App* app = nullptr;  // nullptr: help was not requested
  std::vector<std::string> words;
};

// Returns the message of an error of CLI11, in gpumemctl's words.
std::string MessageOf(const CLI::ParseError& error) {
  std::string text = absl::StrReplaceAll(error.what(), {{"\n", " "}});
  // "--rows: 1 required N missing"
  const size_t missing = text.find(": 1 required ");
  if (missing != std::string::npos && absl::EndsWith(text, " missing")) {
    return absl::StrCat(LongName(text.substr(0, missing)), " needs a value");
  }
  return text;
}

class Parser {
 public:
  Parser() : commands_(&app_) {
    app_.name("gpumemctl");
    app_.description("Show and change what gpumemd, the owner of this node's GPU memory, does.");
    app_.footer(kFooter);
    app_.formatter(std::make_shared<HelpFormatter>());
    app_.set_version_flag("--version", absl::StrCat("gpumemctl ", GPUMEM_VERSION),
                          "Show the version and exit");
    app_.set_help_flag("-h,--help", "Show this help and exit");
    app_.require_subcommand(0, 1);  // none: Parse reports it better than CLI11
    // The global options are also valid after the subcommand.
    app_.fallthrough();
    AddGlobalOptions(&app_, &line_.global);
    AddShowingCommands(&commands_);
    AddUsingCommands(&commands_);
    AddChangingCommands(&commands_);
    AddOtherCommands();
  }

  CommandLine Parse(std::vector<std::string> arguments) {
    // Also if parsing stops before the option.
    const bool json = WantsJson(arguments);
    if (arguments.empty()) {
      line_.text = Overview(app_);
      return std::move(line_);
    }
    std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
    try {
      app_.parse(arguments);
      line_.warnings = Warnings(app_);
      if (help_.app->parsed()) {
        line_.text = Help();
      } else if (commands_.selected()) {
        line_.command = commands_.selected()();
      } else {
        throw CLI::RequiredError("A command");
      }
    } catch (const CLI::Success& asked) {  // --help, --version
      std::ostringstream out;
      app_.exit(asked, out, out);
      line_.text = out.str();
    } catch (const CLI::ExtrasError&) {
      line_.error = UnknownWord(app_);
    } catch (const CLI::ParseError& error) {
      line_.error = MessageOf(error);
    }
    if (!line_.error.empty()) line_.global.json = json;
    return std::move(line_);
  }

  const CLI::App& app() const { return app_; }

 private:
  void AddOtherCommands() {
    CLI::App* help = app_.add_subcommand("help", "Show the help of a command.");
    help->group(kOther);
    help->footer("Examples:\n  gpumemctl help\n  gpumemctl help quota set");
    help->add_option("COMMAND", help_.words, "Show the help of this command (default: all)");
    help_.app = help;
    commands_.Add<VersionCommand>(kOther, "version", "Show the version of gpumemctl.",
                                  "Example: gpumemctl version");
    const auto completion = commands_.Add<CompletionCommand>(
        kOther, "completion", "Print the completion script of a shell.",
        "Examples:\n  source <(gpumemctl completion bash)\n"
        "  gpumemctl completion zsh >~/.zfunc/_gpumemctl\n"
        "  gpumemctl completion fish >~/.config/fish/completions/gpumemctl.fish\n"
        "The Debian package has them already.");
    AddParsed(
        completion.app, "SHELL", OneOfWords({"bash", "zsh", "fish"}),
        [command = completion.command](const std::string& shell) {
          command->shell = shell == "bash"  ? Shell::kBash
                           : shell == "zsh" ? Shell::kZsh
                                            : Shell::kFish;
        },
        "Print it for this shell: bash, zsh or fish")
        ->required()
        ->type_name("bash|zsh|fish");
  }

  // Returns the text for gpumemctl help; sets the error if there is no such command.
  std::string Help() {
    const CLI::App* app = &app_;
    for (const std::string& word : help_.words) {
      const std::vector<const CLI::App*> found =
          app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
      if (found.empty()) {
        line_.error = UnknownCommand(*app, word);
        return "";
      }
      app = found.front();
    }
    return HelpFormatter().make_help(app, "", CLI::AppFormatMode::Normal);
  }

  CLI::App app_;
  CommandSet commands_;
  CommandLine line_;
  HelpRequest help_;
};

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser().Parse(arguments);
}

void WithParser(absl::FunctionRef<void(const CLI::App&)> use) { use(Parser().app()); }

}  // namespace gpumem::cli
