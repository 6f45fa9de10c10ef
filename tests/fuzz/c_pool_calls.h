// SPDX-License-Identifier: Apache-2.0
// Calls of the C ABI for pools and their blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/gpumem.h"
#include "tests/fuzz/c_arguments.h"

namespace gpumem::testing {

class CPoolCalls : protected CArguments {
 protected:
  using CArguments::CArguments;

  void Pools(gpumem_client* client) {
    gpumem_pool*& pool = Of(pools_);
    if (pool == nullptr) {
      auto options = Options<gpumem_pool_options>();
      options.kind = static_cast<int8_t>(input_.Byte()) % 5;
      options.reuse = input_.Byte() & 15;
      options.without_thread_caches = input_.Byte() & 1;
      options.limit_bytes = Bytes();
      options.grow_bytes = Bytes();
      (void)With(options,
                 [&](const auto* given) { return gpumem_pool_create(client, given, &pool); });
      return;
    }
    uint64_t released = 0, total = 0;
    switch (input_.Below(9)) {
      case 0:
        FreeBlocks(pool);
        return Drop(pool, gpumem_pool_destroy);
      case 1:
        return (void)Ok(gpumem_pool_trim(pool, Bytes(), &released));
      case 2:
        return (void)Ok(gpumem_pool_set_limit(pool, Bytes()));
      case 3:
        return (void)Ok(gpumem_pool_set_limit_fraction(pool, input_.Byte() / 128.0 - 0.1));
      case 4:
        return (void)Ok(gpumem_pool_set_release_threshold(pool, Bytes()));
      case 5:
        return (void)Ok(gpumem_pool_set_reuse(pool, input_.Byte()));
      case 6:
        return (void)Ok(gpumem_pool_get_mem_info(pool, &released, &total));
      case 7:
        return (void)Ok(gpumem_pool_set_gives_under_pressure(pool, input_.Byte() & 1));
      default:
        Fill<gpumem_pool_stats>(
            [&](gpumem_pool_stats* stats) { return gpumem_pool_get_stats(pool, stats); });
    }
  }

  struct Block {
    gpumem_pool* pool = nullptr;
    gpumem_block block{};
  };
  // Frees those of a pool; null: all.
  void FreeBlocks(const gpumem_pool* pool) {
    for (Block& each : blocks_) {
      if (each.pool == nullptr || (pool != nullptr && each.pool != pool)) continue;
      (void)Ok(gpumem_pool_free_pointer(each.pool, each.block.data, nullptr));
      each = {};
    }
  }

  void Blocks() {
    gpumem_pool* pool = Of(pools_);
    Block& block = Of(blocks_);
    auto* const stream = reinterpret_cast<void*>(uintptr_t{input_.Below(3)});
    if (block.pool != nullptr) {
      if (input_.Byte() < 0x40) {
        char ticket[2048];
        size_t length = 0;
        if (Ok(gpumem_pool_share(block.pool, &block.block, ticket, sizeof ticket, &length)) &&
            length < sizeof ticket) {
          tickets_.emplace_back(ticket);
        }
        return;
      }
      (void)Ok(gpumem_pool_free(block.pool, &block.block, stream));
      block = {};
      return;
    }
    if (pool == nullptr) return;
    gpumem_block made{};
    if (!Ok(gpumem_pool_allocate(pool, Bytes(), stream, &made)) || made.data == nullptr) return;
    block = {pool, made};
    gpumem_block found{};
    FUZZ_CHECK(Ok(gpumem_pool_find(pool, made.data, &found)) && found.data == made.data);
    static_cast<volatile char*>(made.data)[made.bytes - 1] = 1;
  }

  std::vector<std::string> tickets_;  // of blocks and segments
  std::array<gpumem_pool*, 2> pools_{};
  std::array<Block, 6> blocks_{};
};

}  // namespace gpumem::testing
