// SPDX-License-Identifier: Apache-2.0
#include "client/preload/uuid.h"

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

TEST(UuidTest, ReadsNamesOfDevicesAndInstances) {
  unsigned char uuid[16] = {};
  EXPECT_TRUE(ParseUuid("GPU-01234567-89ab-cdef-FEDC-ba9876543210", &uuid));
  EXPECT_EQ(uuid[0], 0x01);
  EXPECT_EQ(uuid[7], 0xef);
  EXPECT_EQ(uuid[8], 0xfe);
  EXPECT_EQ(uuid[15], 0x10);
  EXPECT_TRUE(ParseUuid("MIG-01234567-89ab-cdef-0123-456789abcdef", &uuid));
}

TEST(UuidTest, RefusesOtherNames) {
  unsigned char uuid[16] = {};
  EXPECT_FALSE(ParseUuid("", &uuid));
  EXPECT_FALSE(ParseUuid("GPU-0123", &uuid));
  EXPECT_FALSE(ParseUuid("GPU-01234567-89ab-cdef-0123-456789abcdef0", &uuid));
  EXPECT_FALSE(ParseUuid("GPU-g1234567-89ab-cdef-0123-456789abcdef", &uuid));
}

}  // namespace
}  // namespace gpumem::preload
