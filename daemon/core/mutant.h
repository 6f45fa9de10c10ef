// SPDX-License-Identifier: Apache-2.0
// Faults that the mutation check puts into the core, one at a time, to see whether the simulation
// finds them (tests/simulation/mutation.cc). Without GPUMEM_MUTANTS there are none.
#pragma once

namespace gpumemd {

// All faults: omissions and errors.
#define GPUMEM_FAULTS(X)                                                                     \
  X(kRetainsSharedOut)       /* memory that another tenant had is retained */                \
  X(kRetainsAboveLimit)      /* memory is retained above the tenant's limits */              \
  X(kRetainsWithoutSession)  /* memory is retained for a tenant without sessions */          \
  X(kRetainsAboveMaximum)    /* memory is retained above max_retained_bytes */               \
  X(kForgetsMappings)        /* memory that a process maps is freed */                       \
  X(kForgetsPins)            /* memory of an open operation is freed */                      \
  X(kUnmapsUnjournaled)      /* the end of a mapping is not journaled */                     \
  X(kUnmapsAll)              /* the end of one of several mappings ends all */               \
  X(kDestroysUnjournaled)    /* the end of a segment is not journaled */                     \
  X(kReleaseKeepsTicket)     /* a ticket outlives its lease */                               \
  X(kReleaseUnjournaled)     /* the end of a lease is not journaled */                       \
  X(kReleaseKeepsAttached)   /* a released lease still counts for its publication */         \
  X(kReleaseKeepsCount)      /* a released lease still counts for its tenant */              \
  X(kReleaseUnmapsSuspended) /* the release of a suspended lease ends another's mapping */   \
  X(kOpenIgnoresScope)       /* another tenant's session opens a ticket of the tenant */     \
  X(kPinsTooFew)             /* the first segment of an operation is not pinned */           \
  X(kExposesNothing)         /* a process is sent a segment and does not count as mapping */ \
  X(kExposesUnmarked)        /* memory given to another tenant is not marked */              \
  X(kExposesUnjournaled)     /* a mapping is not journaled */                                \
  X(kGrantsUnjournaled)      /* a fresh segment is not journaled */                          \
  X(kCreatesUnjournaled)     /* that a segment's memory exists is not journaled */           \
  X(kCommitsToEnded)         /* a session that has ended gets a lease */                     \
  X(kCommitsUnjournaled)     /* a new lease is not journaled */                              \
  X(kAbortKeepsMappings)     /* a failed operation leaves its mappings */                    \
  X(kAbortKeepsFresh)        /* a failed operation's fresh memory is kept */                 \
  X(kAbortDropsRegrant)      /* a request whose answer was lost gets other leases */         \
  X(kRegrantsNothing)        /* a repeated request gets leases beside its earlier ones */    \
  X(kReconcileKeepsAll)      /* leases that a returning client does not have go on */        \
  X(kReconcilesDuringCalls)  /* a client returns before its earlier calls have ended */      \
  X(kMovesMapped)            /* memory that another process maps moves to the tier */        \
  X(kMovesPublished)         /* memory that a publication holds moves with a session's */    \
  X(kMovesUncopied)          /* leases move although the copy has failed */                  \
  X(kMovesUnjournaled)       /* leases that moved are not journaled */                       \
  X(kSuspendsUnjournaled)    /* that a lease is suspended is not journaled */                \
  X(kCancelKeepsRoom)        /* a reservation in the tier stays charged */                   \
  X(kResumesUnmarked)        /* a segment that comes back can be moved meanwhile */          \
  X(kPublishHoldsNothing)    /* a publication does not hold its segments */                  \
  X(kPublishKeepsReplaced)   /* a replaced version goes on */                                \
  X(kUnpublishKeeps)         /* segments of an ended publication stay leased */              \
  X(kContentUnjournaled)     /* a content id is not journaled */                             \
  X(kClaimUnjournaled)       /* a claim is not journaled */                                  \
  X(kClaimOutlivesSession)   /* a claim outlives its session */                              \
  X(kAdmitsTooMuch)          /* a request is granted above every limit */                    \
  X(kEndKeepsToken)          /* the token of an ended session is known */                    \
  X(kEndKeepsWaiters)        /* requests of an ended session still wait */                   \
  X(kEndKeepsEphemeral)      /* publications outlive the session that they end with */       \
  X(kEndKeepsMappings)       /* a process that has gone still counts as mapping */           \
  X(kStoreKeepsFreed)        /* the store keeps the descriptors of freed memory */           \
  X(kUnchargesFirst)         /* memory is uncharged before the driver has it */              \
  X(kStoreGetsNothing)       /* the store is not given the descriptor of new memory */       \
  X(kWritesNotAll)           /* a batch of changes is not written */                         \
  X(kResumesNone)            /* a waiting request is not told that it can go on */           \
  X(kWaitsForever)           /* the clock ends no wait */                                    \
  X(kSendFailureCommits)     /* a request whose descriptors were not sent is not undone */   \
  X(kRestoresNoMappings)     /* the next daemon forgets what processes map */                \
  X(kRestoresNumbers)        /* the next daemon gives a segment's number again */            \
  X(kRestoresDead)           /* the next daemon keeps what ended sessions had */             \
  X(kRestoresUnsuspended)    /* the next daemon forgets that leases are suspended */         \
  X(kRestoresNoExtents)      /* the next daemon forgets where contents lie in the tier */    \
  X(kStageStays)             /* a batch's records do not go to their slots */

enum class Fault {
  kNone,
#define GPUMEM_FAULT(name) name,
  GPUMEM_FAULTS(GPUMEM_FAULT)
#undef GPUMEM_FAULT
};

// True if this fault is to be made.
#ifdef GPUMEM_MUTANTS
inline Fault present_fault = Fault::kNone;
inline bool Mutant(Fault fault) { return fault == present_fault; }
#else
constexpr bool Mutant(Fault) { return false; }
#endif

}  // namespace gpumemd
