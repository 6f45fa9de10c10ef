// SPDX-License-Identifier: Apache-2.0
// For a child after fork().
#pragma once

#include <new>
#include <type_traits>
#include <utility>

namespace gpumem::internal {

// Takes ownership of `object` and never destroys it. In a forked child the object belongs to the
// parent: its destructors would use threads, locks and a driver that the child does not have.
template <typename T>
void Abandon(T&& object) noexcept {
  static_assert(!std::is_lvalue_reference_v<T>);
  (void)new (std::nothrow) T(std::forward<T>(object));
}

}  // namespace gpumem::internal
