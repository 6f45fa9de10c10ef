// SPDX-License-Identifier: Apache-2.0
// gpumemctl map: the devices as pictures. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

struct MapOptions {
  size_t columns = 80;  // of the picture
  size_t rows = 4;      // of each device's picture
  bool exact = false;   // sizes in bytes
  bool headers = true;  // the legend has the names of its columns, and a note below
};

// Draws each device as `rows` lines of at most `columns` characters:
// - a capital letter is a tenant's leased memory, a small one its retained memory, and '~' behind
//   them its lingering memory;
// - '+' is being allocated or returned, 'x' was taken past the broker, '.' is free.
//
// Each tenant with any memory has at least one character. A legend with numbers follows. A tenant
// has the same letter on all devices; of more than 26 tenants, the smallest share '*'.
std::vector<Line> MapView(const std::vector<v1::Device>& devices,
                          const v1::ListTenantsResponse& tenants, const MapOptions& options);

// Distributes `cells` over `parts` by size. Each part that is not zero gets at least one; the sum
// is `cells` (if there are enough of them).
std::vector<size_t> Apportion(const std::vector<uint64_t>& parts, size_t cells);

}  // namespace gpumem::cli
