// Text from others, made harmless to a terminal. Names of publications, files, tenants, processes
// and control groups are chosen by users that gpumemctl's user has no reason to trust.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

// Returns `text` with '?' for each character that a terminal may act on: control characters of
// ASCII and Unicode (C0, DEL, C1), those that reorder text (bidirectional formatting), line and
// paragraph separators, and each byte that is not part of valid UTF-8.
std::string Printable(absl::string_view text);

// As Printable, and keeps line feeds. For messages, which may have several lines.
std::string PrintableLines(absl::string_view text);

// Returns valid JSON, in which the characters that Printable replaces may occur in strings, with
// these as \u escapes: the same document. Bytes that are no UTF-8 are left alone.
std::string EscapedJson(absl::string_view json);

}  // namespace gpumem::cli
