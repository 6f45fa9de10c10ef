// SPDX-License-Identifier: Apache-2.0
// gRPC's timers, without its threads that wake each second.
//
// gRPC 1.51 has two lists of timers, each with a thread that looks at it once a second, even if it
// is empty. SetEventEngineFactory() replaces the one (its users are gRPC's clients, mostly). For
// the other, iomgr's, gRPC has functions to do without the thread: it uses them around fork().
#pragma once

#include "absl/time/time.h"

namespace gpumemd {

// Call once, before anything else of gRPC, in a process that serves and makes no calls. The caller
// then calls RunGrpcTimers() often enough: each 100 ms while anything comes or goes on gRPC's
// sockets, and each 10 s otherwise. So late do the deadlines of unanswered calls fire; each call
// that waits has a deadline of the broker, too.
//
// Without memory or threads for a moment, gRPC 1.51 never returns from this. After `patience`, of
// real time, SIGALRM ends the process then, and stderr has the reason. Uses ITIMER_REAL
// (setitimer(2)).
void TakeOverGrpcTimers(absl::Duration patience = absl::Seconds(30));

// True after TakeOverGrpcTimers(), until GiveBackGrpcTimers().
bool HasGrpcTimers();
void RunGrpcTimers();

// Has gRPC run its timers itself again.
void GiveBackGrpcTimers();

}  // namespace gpumemd
