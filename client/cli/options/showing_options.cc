// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/showing_options.h"

#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/options/common_options.h"
#include "client/cli/options/parsed_options.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

// Returns milliseconds.
absl::StatusOr<uint64_t> ParseTraceTime(const std::string& text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0.001 && seconds <= 60)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a number of seconds from 0.001 to 60"));
  }
  return static_cast<uint64_t>(seconds * 1000);
}

}  // namespace

void AddTopOptions(CLI::App* app, TopCommand* command) {
  AddParsed(
      app, "--by", OneOfWords({"tenant", "process", "device"}),
      [command](const std::string& word) {
        command->by = word == "tenant"    ? TopBy::kTenant
                      : word == "process" ? TopBy::kProcess
                                          : TopBy::kDevice;
      },
      "Show a line for each of these (default: tenant)")
      ->type_name("tenant|process|device");
  AddParsed(
      app, "--sort", OneOfWords({"size", "name", "count", "age"}),
      [command](const std::string& word) {
        command->sort = word == "size"    ? TopSort::kSize
                        : word == "name"  ? TopSort::kName
                        : word == "count" ? TopSort::kCount
                                          : TopSort::kAge;
      },
      "Sort by this (default: size)")
      ->type_name("size|name|count|age");
  AddParsed(app, "--interval", ParsePositiveDuration, Into(&command->interval),
            "Refresh at this interval (default: 1s)")
      ->type_name("TIME");
  app->add_option("--iterations", command->iterations, "Refresh N times, then exit")
      ->type_name("N");
  app->parse_complete_callback([command] {
    if (command->sort == TopSort::kAge && command->by != TopBy::kProcess) {
      throw CLI::ValidationError("--sort", "age needs --by process");
    }
  });
}

void AddUsageOptions(CLI::App* app, UsageCommand* command) {
  CLI::Option* tenant =
      app->add_option("TENANT", command->tenant, "Show this tenant (default: your own)");
  AddParsed(app, "--job", ParseSlurmJob, Into(&command->tenant),
            "Show the tenant of this Slurm job on this node")
      ->type_name("ID")
      ->excludes(tenant);
}

void AddMapOptions(CLI::App* app, MapCommand* command) {
  AddDeviceFilter(app, &command->device);
  app->add_option("--rows", command->rows, "Draw each device in N lines (1-100, default: 4)")
      ->type_name("N")
      ->check(CLI::Range(1, 100).description(""));
}

void AddEventsOptions(CLI::App* app, EventsCommand* command) {
  v1::WatchEventsRequest& request = command->request;
  request.set_past(true);
  CLI::Option* follow = app->add_flag_callback(
      "--follow,-f",
      [&request] {
        request.set_follow(true);
        request.set_past(false);
      },
      "Show new events until Ctrl-C");
  follow->disable_flag_override();
  AddParsed(
      app, "--since", [](const std::string& text) { return ParseSince(text, absl::Now()); },
      [command](absl::Time since) {
        command->since = since;
        command->request.set_past(true);
      },
      "Show past events from this time on: 10m ago, or RFC 3339")
      ->type_name("TIME");
  app->add_flag_callback(
         "--past", [&request] { request.set_past(true); }, "With --follow, show past events first")
      ->disable_flag_override()
      ->needs(follow);
  app->add_option_function<std::string>(
         "--tenant", [&request](const std::string& name) { request.set_tenant(name); },
         "Show only events that concern this tenant")
      ->type_name("TENANT");
  app->add_option_function<std::vector<std::string>>(
         "--event",
         [&request](const std::vector<std::string>& names) {
           for (const std::string& name : names) request.add_events(name);
         },
         "Show only this event, such as denied; repeatable")
      ->allow_extra_args(false)
      ->type_name("EVENT");
}

void AddTraceOptions(CLI::App* app, TraceCommand* command) {
  AddParsed(
      app, "--seconds", ParseTraceTime,
      [command](uint64_t milliseconds) { command->request.set_duration_ms(milliseconds); },
      "Record for N seconds (0.001-60, default: 5)")
      ->type_name("N");
  command->request.set_duration_ms(5000);
  app->add_option("--out,-O", command->out, "Write the trace to this file; - is stdout")
      ->type_name("FILE")
      ->required();
  app->add_flag("--force", command->force, "Replace the file")->disable_flag_override();
  app->add_option_function<uint64_t>(
         "--session", [command](uint64_t id) { command->request.set_session_id(id); },
         "Record only calls of this session")
      ->type_name("ID");
  app->add_option("--with", command->with, "Append this client's trace; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

void AddTraceShowOptions(CLI::App* app, TraceShowCommand* command) {
  app->add_option("FILE", command->files, "Summarize these files, as one trace")
      ->type_name("")
      ->required();
}

void AddDescribeOptions(CLI::App* app, DescribeCommand* command) {
  app->add_option_function<std::vector<std::string>>(
         "WHAT",
         [command](const std::vector<std::string>& words) {
           command->name = words.back();
           if (words.size() == 1) return;
           static const std::map<std::string, Subject> kSubjects = {
               {"tenant", Subject::kTenant}, {"session", Subject::kSession},
               {"lease", Subject::kLease},   {"segment", Subject::kSegment},
               {"device", Subject::kDevice}, {"publication", Subject::kPublication}};
           const auto it = kSubjects.find(words.front());
           if (it == kSubjects.end()) {
             throw CLI::ValidationError(
                 "describe", "\"" + words.front() +
                                 "\" is not a type of object (expected tenant, session, lease, "
                                 "segment, publication or device)");
           }
           command->subject = it->second;
         },
         "Describe this object: its type, and name or number")
      ->required()
      ->expected(1, 2)
      ->type_name("");
}

}  // namespace gpumem::cli
