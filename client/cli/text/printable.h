// SPDX-License-Identifier: Apache-2.0
// Makes untrusted text harmless to a terminal. Names of publications, files, tenants, processes and
// control groups are chosen by users that gpumemctl's user need not trust.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

// Returns `text` with '?' for each character that a terminal may act on. These are control
// characters of ASCII and Unicode (C0, DEL, C1) and characters that reorder text (bidirectional
// formatting). They also include line and paragraph separators, and each byte that is not part of
// valid UTF-8.
std::string Printable(absl::string_view text);

// As Printable, but keeps line feeds. For messages, which may have several lines.
std::string PrintableLines(absl::string_view text);

// Replaces the characters that Printable replaces by \u escapes in the strings of valid JSON. The
// document stays the same. Invalid UTF-8 is kept.
std::string EscapedJson(absl::string_view json);

}  // namespace gpumem::cli
