// SPDX-License-Identifier: Apache-2.0
// The user for whom a document or a stream is made.
#pragma once

#include <sys/types.h>

namespace gpumem::web {

struct Viewer {
  uid_t uid = 0;
  bool sees_all = false;  // sees all tenants, whatever [privacy] holders says
};

}  // namespace gpumem::web
