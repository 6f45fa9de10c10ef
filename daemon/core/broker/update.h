// SPDX-License-Identifier: Apache-2.0
// A change of the broker's ledger. For the broker's source files only.
#pragma once

#include <exception>

#include "absl/base/thread_annotations.h"
#include "daemon/core/broker/broker.h"

namespace gpumemd {

// Holds the broker's mutex. The destructor settles the results of the change (Broker::Settle) and
// releases the mutex. It then resumes the requests that can go on: hundreds may, and each resume
// wakes a thread. Code that only reads the ledger takes a TimedLock.
//
// A part of a change must not get into the journal. So an exception that leaves the scope of the
// object ends the process, though gRPC would catch it.
class ABSL_SCOPED_LOCKABLE Broker::Update {
 public:
  explicit Update(Broker* broker) ABSL_EXCLUSIVE_LOCK_FUNCTION(broker->mutex_) : broker_(broker) {
    broker_->mutex_.Lock();
  }
  ~Update() ABSL_UNLOCK_FUNCTION();
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

 private:
  Broker* const broker_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace gpumemd
