// gpumemctl map: the devices as pictures. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "client/cli/text/styled.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::cli {

struct MapOptions {
  size_t columns = 80;  // of the picture
  size_t rows = 4;      // of each device's
  bool exact = false;   // sizes in bytes
};

// Each device as `rows` lines of `columns` characters at most, in which each tenant has as many
// letters as it has bytes: capital ones for what is leased, small ones for what is retained, '~'
// behind them for what lingers; then '+' for what is being made or given back, 'x' for what was
// taken past the broker, '.' for what is free. Whoever has anything at all has one character.
// Below stands who is who, with numbers. A tenant has the same letter on all devices; where there
// are more than 26, the smallest share '*'.
std::vector<Line> MapView(const std::vector<v1::Device>& devices,
                          const v1::ListTenantsResponse& tenants, const MapOptions& options);

// How many of `cells` each of `parts` gets: by size, at least one for each that is not zero, and
// `cells` in all (where there are enough of them).
std::vector<size_t> Apportion(const std::vector<uint64_t>& parts, size_t cells);

}  // namespace gpumem::cli
