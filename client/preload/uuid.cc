// SPDX-License-Identifier: Apache-2.0
#include "client/preload/uuid.h"

#include <string.h>

namespace gpumem::preload {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool ParseUuid(const char* text, unsigned char (*uuid)[16]) {
  const char* dash = strchr(text, '-');
  if (dash == nullptr) return false;
  int digits = 0;
  for (const char* c = dash + 1; *c != '\0'; ++c) {
    if (*c == '-') continue;
    int digit = HexDigit(*c);
    if (digit < 0 || digits == 32) return false;
    unsigned char& byte = (*uuid)[digits / 2];
    byte = static_cast<unsigned char>(digits % 2 == 0 ? digit << 4 : byte | digit);
    ++digits;
  }
  return digits == 32;
}

}  // namespace gpumem::preload
