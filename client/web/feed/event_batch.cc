// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/event_batch.h"

#include <iterator>
#include <utility>

namespace gpumem::web {
namespace {

void Move(std::vector<v1::EventRecord>& from, std::vector<v1::EventRecord>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  from.clear();
}

void DropOldest(std::vector<v1::EventRecord>* records) {
  if (records->size() <= EventBatch::kMost) return;
  records->erase(records->begin(), records->end() - EventBatch::kMost);
}

}  // namespace

void EventBatch::Append(EventBatch next) {
  if (!next.past.empty()) {
    // The past that was read after a stream's end follows all that came before.
    Move(later, &past);
    Move(next.past, &past);
    DropOldest(&past);
  }
  Move(next.later, &later);
  if (later.size() >= 2 * kMost) DropOldest(&later);
  if (next.state) state = std::move(next.state);
}

}  // namespace gpumem::web
