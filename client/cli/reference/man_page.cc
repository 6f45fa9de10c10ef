// SPDX-License-Identifier: Apache-2.0
#include "client/cli/reference/man_page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

// Escapes text for troff; its '-' can be copied to a shell.
std::string Plain(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
}

// Escapes a line: a '.' or a "'" at its beginning would be a request.
std::string Line(absl::string_view text) {
  const std::string plain = Plain(text);
  const bool request = absl::StartsWith(plain, ".") || absl::StartsWith(plain, "'");
  return absl::StrCat(request ? "\\&" : "", plain, "\n");
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Plain(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Plain(text), "\\fR"); }

// Returns the lines without formatting.
std::string Verbatim(const std::vector<std::string>& lines) {
  std::string out = ".PP\n.RS 4\n.nf\n";
  for (const std::string& line : lines) out += Line(line);
  return out + ".fi\n.RE\n";
}

// Formats the footer of a command's --help: examples keep their lines, sentences do not.
std::string Footer(absl::string_view footer) {
  std::string out;
  std::vector<std::string> examples;
  bool in_text = false;
  const auto end_examples = [&] {
    if (!examples.empty()) out += Verbatim(examples);
    examples.clear();
  };
  for (absl::string_view line : absl::StrSplit(footer, '\n', absl::SkipWhitespace())) {
    if (line == "Examples:") continue;
    absl::string_view example = line;
    if (absl::ConsumePrefix(&example, "Example: ") || absl::ConsumePrefix(&example, "  ")) {
      in_text = false;
      examples.emplace_back(example);
      continue;
    }
    end_examples();
    if (!in_text) out += ".PP\n";
    in_text = true;
    out += Line(line);
  }
  end_examples();
  return out;
}

std::string Options(const std::vector<OptionReference>& options) {
  std::string out;
  for (const OptionReference& option : options) {
    if (option.name == "--help" && option.short_name == "-h") continue;  // documented once
    out += ".TP\n";
    if (!option.short_name.empty()) out += Bold(option.short_name) + ", ";
    if (!absl::StartsWith(option.name, "-")) {
      out += Italic(option.name);
    } else {
      out += Bold(option.name);
      if (!option.value.empty()) {
        out += " " + (option.words.empty() ||
                              absl::ascii_isupper(static_cast<unsigned char>(option.value.front()))
                          ? Italic(option.value)
                          : Bold(option.value));
      }
    }
    absl::StrAppend(&out, "\n",
                    Line(absl::StrCat(option.what, option.required ? " (required)" : "")));
  }
  return out;
}

std::string Synopsis(const CommandReference& command) {
  std::string out = Bold(command.name);
  if (!command.subcommands.empty()) {
    absl::StrAppend(&out, " ", command.alone ? "[" : "", Italic("COMMAND"),
                    command.alone ? "]" : "");
  }
  for (const OptionReference& operand : command.operands) {
    const std::string name = Italic(operand.name) + (operand.repeatable ? "..." : "");
    absl::StrAppend(&out, " ", operand.required ? name : absl::StrCat("[", name, "]"));
  }
  for (const OptionReference& option : command.options) {
    if (option.required) absl::StrAppend(&out, " ", Bold(option.name), " ", Italic(option.value));
  }
  return out + " [" + Italic("OPTION") + "]...\n";
}

// The parts of gpumemctl's footer, separated by empty lines, that become sections.
struct Sections {
  std::string description;
  std::string examples;
  std::string exit_codes;
};

Sections SectionsOf(absl::string_view footer) {
  Sections sections;
  for (absl::string_view part : absl::StrSplit(footer, "\n\n")) {
    part = absl::StripPrefix(part, "\n");
    if (absl::ConsumePrefix(&part, "Exit codes:\n")) {
      for (absl::string_view line : absl::StrSplit(part, '\n')) {
        line = absl::StripAsciiWhitespace(line);
        const size_t space = line.find(' ');
        absl::StrAppend(&sections.exit_codes, ".TP\n", Bold(line.substr(0, space)), "\n",
                        Line(absl::StripAsciiWhitespace(line.substr(space))));
      }
    } else if (absl::StartsWith(part, "Examples:\n")) {
      sections.examples = Footer(part);
    } else {
      sections.description += Footer(part);
    }
  }
  return sections;
}

std::string Command(const CommandReference& command) {
  return absl::StrCat(".SS ", Plain(command.short_name()), "\n", Synopsis(command), ".PP\n",
                      Line(command.what), Options(command.operands), Options(command.options),
                      Footer(command.footer));
}

}  // namespace

std::string ManPage(const std::vector<CommandReference>& commands) {
  const CommandReference& program = commands.front();
  const Sections sections = SectionsOf(program.footer);
  std::string out = absl::StrCat(
      ".\\\" Generated from the program's own command line: do not edit.\n",
      ".TH GPUMEMCTL 1 \"\" \"gpumem ", GPUMEM_VERSION, "\" \"gpumem\"\n.SH NAME\n",
      "gpumemctl \\- show and change who holds how much GPU memory\n.SH SYNOPSIS\n",
      Synopsis(program), ".SH DESCRIPTION\n", Line(program.what), sections.description);
  absl::StrAppend(&out, ".SH OPTIONS\nGive these before or after the command.\n",
                  Options(OptionsEverywhere(commands)));
  absl::StrAppend(&out, ".PP\nGive these without a command:\n");
  for (const OptionReference& option : program.options) {
    if (option.name != "--help" && option.name != "--version") continue;
    const std::string name =
        option.short_name.empty() ? "" : absl::StrCat(Bold(option.short_name), ", ");
    absl::StrAppend(&out, ".TP\n", name, Bold(option.name), "\n", Line(option.what));
  }
  out += ".SH COMMANDS\n";
  for (size_t i = 1; i < commands.size(); ++i) out += Command(commands[i]);
  absl::StrAppend(&out, ".SH EXIT STATUS\n", sections.exit_codes, ".SH ENVIRONMENT\n.TP\n",
                  Bold("GPUMEM_RUNTIME_DIR"),
                  "\nThe folder of the daemon's sockets if no option names one.\n.TP\n",
                  Bold("CUDA_VISIBLE_DEVICES"),
                  "\nThe GPUs visible to the commands that map memory, in this order.\n",
                  ".SH EXAMPLES\n", sections.examples,
                  ".SH SEE ALSO\n.BR gpumemd (8),\n.BR gpumemd.toml (5),\n"
                  ".BR gpumem\\-keeper (8)\n");
  return out;
}

}  // namespace gpumem::cli
