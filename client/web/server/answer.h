// SPDX-License-Identifier: Apache-2.0
// Requests and answers, as the handler sees them: without connections.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/web/feed/feed_source.h"
#include "client/web/server/calls.h"
#include "client/web/server/origin.h"

namespace gpumem::web {

struct Request {
  std::string method;
  std::string target;
  SenderFields sender;
  std::string authorization;    // the field, or empty
  std::string accept_encoding;  // the same
  std::string if_none_match;    // the same
  std::string body;
};

struct Answer {
  int status = 200;
  std::string type = "application/json";
  Message body;                  // nullptr: `file` is the body
  absl::string_view file;        // of the program
  std::string allow;             // methods, with 405
  std::string etag;              // of a file; otherwise nothing may be stored
  bool gzip = false;             // the body is compressed
  std::optional<Viewer> stream;  // for this viewer, instead of a body
  Calls::Place place;            // to keep until the body is sent
};

// Returns an error as a JSON document.
Answer ErrorAnswer(const absl::Status& error);
// The same, with this status of HTTP.
Answer ErrorAnswer(int status, const absl::Status& error);

// Returns an answer with a JSON document.
Answer JsonAnswer(std::string document);

// Returns the fields of the answer, from the status line on, up to the empty line. `keep_alive`:
// the connection stays open. `length`: of the body; nullopt: the body ends with the connection.
std::string HeadOf(const Answer& answer, bool keep_alive, std::optional<size_t> length);

}  // namespace gpumem::web
