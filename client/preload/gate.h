// SPDX-License-Identifier: Apache-2.0
// Holds the program's GPU work while its brokered memory is suspended.
//
// Calls that use device memory, or give work to the GPU that may, are made inside the gate. A
// suspension closes it: afterwards no such call is under way, and further ones wait until it is
// open.
#pragma once

#include <stdint.h>

namespace gpumem::preload {

// Lets calls wait at the gate from now on. Before that, GateHold does nothing. `wanted` is called
// by threads that find the gate closed, before they wait.
void UseGate(void (*wanted)());

// Closes the gate, and returns true when all calls inside it have returned. If that takes longer
// than `timeout_ms`, opens it again and returns false: the thread inside may wait for what another
// one would do behind the gate. The calling thread must be outside. One thread at a time closes and
// opens.
bool CloseGate(uint64_t timeout_ms);
void OpenGate();

// The calling thread is inside from now on, also while the gate is closed: it suspends and resumes.
void PassGate();

// Returns how often the gate was passed: a program whose number grows is at work.
uint64_t GatePasses();

// Forgets who is inside, in a child after fork().
void AbandonGate();

// Inside the gate while it exists. A thread may nest them.
class GateHold {
 public:
  enum class IfClosed { kWait, kStayOutside };

  explicit GateHold(IfClosed if_closed = IfClosed::kWait)
      : refused_(if_closed == IfClosed::kStayOutside && IsClosed()), held_(!refused_ && Enter()) {}
  ~GateHold() {
    if (held_) Leave();
  }
  // The gate was closed, and the thread is outside.
  bool refused() const { return refused_; }
  GateHold(const GateHold&) = delete;
  GateHold& operator=(const GateHold&) = delete;

 private:
  static bool IsClosed();
  // Returns false if the gate is not in use.
  static bool Enter();
  static void Leave();

  const bool refused_;
  const bool held_;
};

}  // namespace gpumem::preload
