// SPDX-License-Identifier: Apache-2.0
// The release that this tree builds. The `run` script reads it too.
#pragma once

#define GPUMEM_VERSION "0.1.0"
