// gpumemctl top: what it shows, and what keys do. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/text/keys.h"
#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

enum class TopBy { kTenant, kProcess, kDevice };

// kAge (the youngest first) is for processes alone.
enum class TopSort { kSize, kName, kCount, kAge };

// One look at the daemon.
struct TopData {
  v1::GetStatusResponse status;
  v1::ListTenantsResponse tenants;
  v1::ListSessionsResponse sessions;
};

// How the user wants to see it.
struct TopState {
  TopBy by = TopBy::kTenant;
  TopSort sort = TopSort::kSize;
  bool exact = false;
  bool help = false;
  size_t first = 0;     // the first row of the table that is seen
  std::string trouble;  // why what is shown is old; empty: it is not
};

// What TopState becomes by a key; false: to quit. `page`: how many rows of the table are seen.
bool Press(const KeyPress& key, size_t page, TopState* state);

// How many rows of the table are seen on a screen of `rows` lines.
size_t TopPage(const TopData& data, size_t rows);

// The screen: `rows` lines of `columns` characters at most. With `rows` 0 all there is, and nothing
// about keys. A state->first behind the end is set to the last page.
std::vector<Line> TopView(const TopData& data, size_t rows, size_t columns, TopState* state);

}  // namespace gpumem::cli
