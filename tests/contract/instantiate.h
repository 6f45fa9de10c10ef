// SPDX-License-Identifier: Apache-2.0
// Instantiates the contract. In namespace gpumem::contract, once for a backend:
//
//   GPUMEM_INSTANTIATE_CONTRACT(Host, "host");
#pragma once

#include "tests/contract/contract.h"

#define GPUMEM_INSTANTIATE_CONTRACT(name, backend)                                                 \
  INSTANTIATE_TEST_SUITE_P(name, NodeContract, ::testing::Values(backend));                        \
  INSTANTIATE_TEST_SUITE_P(name, DeviceNames, ::testing::Values(backend));                         \
  INSTANTIATE_TEST_SUITE_P(name, KindContract, ::testing::ValuesIn(PlacesOf(backend)), PlaceName); \
  INSTANTIATE_TEST_SUITE_P(name, PoolContract, ::testing::ValuesIn(PlacesOf(backend)), PlaceName); \
  INSTANTIATE_TEST_SUITE_P(name, ContextSegments, ::testing::ValuesIn(ContextPlacesOf(backend)),   \
                           PlaceName);                                                             \
  INSTANTIATE_TEST_SUITE_P(                                                                        \
      name, SharingSegments,                                                                       \
      ::testing::Combine(::testing::ValuesIn(PlacesOf(backend)),                                   \
                         ::testing::Values(Identity::kSameProcess, Identity::kSameUser,            \
                                           Identity::kOtherUser, Identity::kOwnNamespaces)),       \
      SharingName);                                                                                \
  INSTANTIATE_TEST_SUITE_P(                                                                        \
      name, SharingWithOthers,                                                                     \
      ::testing::Combine(                                                                          \
          ::testing::ValuesIn(PlacesOf(backend)),                                                  \
          ::testing::Values(Identity::kSameUser, Identity::kOtherUser, Identity::kOwnNamespaces)), \
      SharingName)
