// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/common_options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

constexpr char kDeprecated[] = "Deprecated: use ";

void AddWarnings(const CLI::App& app, std::vector<std::string>* warnings) {
  for (const CLI::Option* option : app.get_options()) {
    absl::string_view replacement = option->get_description();
    if (option->count() == 0 || !absl::ConsumePrefix(&replacement, kDeprecated)) continue;
    warnings->push_back(
        absl::StrCat("--", option->get_lnames().front(), " is deprecated: use ", replacement));
  }
  for (const CLI::App* sub : app.get_subcommands()) AddWarnings(*sub, warnings);
}

}  // namespace

void AddGlobalOptions(CLI::App* app, GlobalOptions* options) {
  app->add_option("--runtime-dir", options->runtime_dir, "Find the daemon's sockets in this folder")
      ->take_last()
      ->type_name("DIR");
  CLI::Option* output = AddParsed(
      app, "-o,--output", OneOfWords({"table", "wide", "json"}),
      [options](const std::string& form) {
        options->json = form == "json";
        options->wide = form == "wide";
      },
      "Print in this form (default: table); wide has more columns");
  output->take_last()->type_name("table|wide|json");
  app->add_flag("--json", options->json, "Print JSON, as -o json")->excludes(output);
  app->add_flag("--exact", options->exact, "Print sizes in bytes");
  app->add_flag_callback(
         "--no-headers", [options] { options->headers = false; },
         "Print tables without the names of columns")
      ->disable_flag_override();
  AddParsed(
      app, "--color", OneOfWords({"auto", "always", "never"}),
      [options](const std::string& when) {
        options->color = when == "always"  ? ColorMode::kAlways
                         : when == "never" ? ColorMode::kNever
                                           : ColorMode::kAuto;
      },
      "Print colours (default: auto; obeys NO_COLOR)")
      ->take_last()
      ->type_name("auto|always|never");
  AddParsed(app, "--timeout", ParsePositiveDuration, Into(&options->timeout),
            "Wait this long for each answer of the daemon")
      ->take_last()
      ->type_name("TIME");
  Deprecate(app->add_flag("--bytes", options->exact, ""), "--exact");
  Deprecate(app->add_flag_callback(
                "--no-color", [options] { options->color = ColorMode::kNever; }, ""),
            "--color never");
}

void AddCaution(CLI::App* app, Caution* caution, bool asks) {
  app->add_flag("--dry-run", caution->dry_run, "Show what would change, and change nothing");
  if (asks) {
    app->add_flag("-y,--yes", caution->yes, "Do not ask for confirmation");
  } else {
    caution->yes = true;
  }
}

CLI::Option* AddTenantFilter(CLI::App* app, std::string* tenant) {
  return app->add_option("--tenant", *tenant, "Show only this tenant")->type_name("TENANT");
}

CLI::Option* AddDeviceFilter(CLI::App* app, std::string* device) {
  return app->add_option("--device", *device, "Show only this device (see gpumemctl devices)")
      ->type_name("DEVICE");
}

void AddAs(CLI::App* app, std::string* tenant) {
  app->add_option("--as", *tenant, "Act as this tenant, if the rules allow it")
      ->type_name("TENANT");
  Deprecate(app->add_option("--tenant", *tenant, ""), "--as");
}

CLI::Option* Deprecate(CLI::Option* option, const std::string& replacement) {
  return option->group("")->description(absl::StrCat(kDeprecated, replacement));
}

std::vector<std::string> Warnings(const CLI::App& app) {
  std::vector<std::string> warnings;
  AddWarnings(app, &warnings);
  return warnings;
}

bool WantsJson(const std::vector<std::string>& arguments) {
  std::string before;
  for (const std::string& given : arguments) {
    // As OneOfWords, which ignores case.
    const std::string argument = absl::AsciiStrToLower(given);
    if (argument == "--json" || argument == "-ojson" || argument == "-o=json" ||
        argument == "--output=json") {
      return true;
    }
    if (argument == "json" && (before == "-o" || before == "--output")) return true;
    before = argument;
  }
  return false;
}

}  // namespace gpumem::cli
