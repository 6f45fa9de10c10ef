// SPDX-License-Identifier: Apache-2.0
// The definitions of the handles in gpumem/gpumem.h.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "gpumem/client.h"
#include "gpumem/gpumem.h"
#include "gpumem/pool.h"

struct gpumem_client {
  const std::shared_ptr<gpumem::Client> client;
};

struct gpumem_segment {
  gpumem::Segment segment;
  std::array<std::string, 2> tickets = {};  // by scope, once requested
};

struct gpumem_cancel_token {
  const gpumem::CancelToken token;
};

struct gpumem_watch {
  std::unique_ptr<gpumem::Watch> watch;
};

struct gpumem_event {
  gpumem::Event event;
};

struct gpumem_pool {
  const std::unique_ptr<gpumem::Pool> pool;
  const bool is_default = false;                 // a default pool, never destroyed
  const std::shared_ptr<gpumem::Client> client;  // by which it leases
};
