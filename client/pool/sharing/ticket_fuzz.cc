// SPDX-License-Identifier: Apache-2.0
// The texts of tickets, of segments and of blocks. Each ticket has exactly one text.
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/pool/sharing/block_ticket.h"
#include "client/session/ticket.h"
#include "common/testing/fuzz/input.h"

namespace gpumem::internal {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<std::string> bytes = ParseTicket(text);
  if (bytes.ok()) {
    FUZZ_CHECK(bytes->size() == kTicketBytes);
    FUZZ_CHECK(FormatTicket(*bytes) == text);
  } else {
    FUZZ_CHECK(absl::IsInvalidArgument(bytes.status()));
  }
  const absl::StatusOr<BlockTicket> block = ParseBlockTicket(text);
  if (block.ok()) {
    FUZZ_CHECK(!block->segments.empty());
    FUZZ_CHECK(block->offset <= UINT64_MAX - block->bytes);
    FUZZ_CHECK(FormatBlockTicket(*block) == text);
  } else {
    FUZZ_CHECK(absl::IsInvalidArgument(block.status()));
  }
  FUZZ_CHECK(!bytes.ok() || !block.ok());
  if (size == kTicketBytes) FUZZ_CHECK(*ParseTicket(FormatTicket(text)) == text);
  return 0;
}

}  // namespace gpumem::internal
