// SPDX-License-Identifier: Apache-2.0
// Options of CLI11 whose text is parsed to a value, with a clear error if it is invalid.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gpumem::cli {

// Returns the long one of an option's names: "--event" of "-e,--event".
inline std::string LongName(const std::string& names) { return names.substr(names.rfind(',') + 1); }

// Adds an option whose text `parse` turns into a value for `take`.
template <typename Parse, typename Take>
CLI::Option* AddParsed(CLI::App* app, const std::string& name, Parse parse, Take take,
                       const std::string& help) {
  return app->add_option_function<std::string>(
      name,
      [=](const std::string& text) {
        auto value = parse(text);
        if (!value.ok()) {
          throw CLI::ValidationError(LongName(name), std::string(value.status().message()));
        }
        take(*std::move(value));
      },
      help);
}

// As above, for an option that may be given several times.
template <typename Parse, typename Take>
CLI::Option* AddSeveral(CLI::App* app, const std::string& name, Parse parse, Take take,
                        const std::string& help) {
  return app
      ->add_option_function<std::vector<std::string>>(
          name,
          [=](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              auto value = parse(text);
              if (!value.ok()) {
                throw CLI::ValidationError(LongName(name), std::string(value.status().message()));
              }
              take(*std::move(value));
            }
          },
          help + "; repeatable")
      ->allow_extra_args(false);
}

// Returns the destination of a parsed value.
template <typename Out>
auto Into(Out* out) {
  return [out](auto value) { *out = std::move(value); };
}

}  // namespace gpumem::cli
