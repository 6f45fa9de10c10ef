// SPDX-License-Identifier: Apache-2.0
// gpumemctl top: its picture, and the effects of keys. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/text/keys.h"
#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

enum class TopBy { kTenant, kProcess, kDevice };

// kAge (the youngest first) is for processes only.
enum class TopSort { kSize, kName, kCount, kAge };

// One query of the daemon.
struct TopData {
  v1::GetStatusResponse status;
  v1::ListTenantsResponse tenants;
  v1::ListSessionsResponse sessions;
};

// The user's view settings.
struct TopState {
  TopBy by = TopBy::kTenant;
  TopSort sort = TopSort::kSize;
  bool exact = false;
  bool help = false;
  bool headers = true;  // names of the table's columns; a drawn screen always has them
  size_t first = 0;     // the first visible row of the table
  std::string trouble;  // why the data is stale; empty: it is current
};

// Applies a key to TopState; false: quit. `page`: the number of visible rows of the table.
bool Press(const KeyPress& key, size_t page, TopState* state);

// Returns the number of visible rows of the table on a screen of `rows` lines.
size_t TopPage(const TopData& data, size_t rows);

// Draws the screen: `rows` lines of at most `columns` characters. With `rows` 0 draws all rows,
// without the help on keys. A state->first behind the end is set to the last page.
std::vector<Line> TopView(const TopData& data, size_t rows, size_t columns, TopState* state);

}  // namespace gpumem::cli
