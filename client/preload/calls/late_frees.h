// SPDX-License-Identifier: Apache-2.0
// Memory of cuMemAlloc() that is freed in the order of a stream. The driver has it until the stream
// has come to the free. So it is charged until then, as an event shows.
#pragma once

#include "client/preload/accounting.h"
#include "client/preload/driver.h"

namespace gpumem::preload {

// Refunds a charge once the work on the stream is done. The driver has accepted the free.
void RefundInOrder(const Driver& driver, const Charge& charge, CUstream stream);

// Refunds what streams have come to. True if that was anything.
bool SettleFrees();

void AbandonFrees();

}  // namespace gpumem::preload
