// SPDX-License-Identifier: Apache-2.0
// The attacks by their functions; FindAttack has their names.
#pragma once

#include "tests/hostile/attacks.h"

namespace gpumem::hostile {

// --- HTTP/2 (http2_attacks.cc) -------------------------------------------------------------------

Tally HalfSent(const Orders& orders);
Tally SettingsFlood(const Orders& orders);
Tally PingFlood(const Orders& orders);
Tally RapidReset(const Orders& orders);
Tally ViewReset(const Orders& orders);
Tally CallStorm(const Orders& orders);

// --- Header fields (header_attacks.cc) -----------------------------------------------------------

Tally EndlessHeaders(const Orders& orders);
Tally WrongHeaders(const Orders& orders);
Tally CompressedRequests(const Orders& orders);

// --- Calls (call_attacks.cc) ---------------------------------------------------------------------

Tally LeaseFlood(const Orders& orders);
Tally AttachMany(const Orders& orders);
Tally ReleaseFlood(const Orders& orders);
Tally ReconcileFlood(const Orders& orders);
Tally Wait(const Orders& orders);
Tally Tickle(const Orders& orders);
Tally ReleaseSlowly(const Orders& orders);

// --- Converse (lane_attacks.cc) ------------------------------------------------------------------

Tally LaneStorm(const Orders& orders);

// --- Suspended leases (suspend_attacks.cc) -------------------------------------------------------

Tally SuspendFlood(const Orders& orders);
Tally ReportFlood(const Orders& orders);
Tally IgnoreSuspensions(const Orders& orders);

// --- Exchanged leases (exchange_attacks.cc) ------------------------------------------------------

Tally ExchangeFlood(const Orders& orders);

// --- Suspended publications (publication_attacks.cc) ---------------------------------------------

Tally PublicationStorm(const Orders& orders);
Tally SuspendPublications(const Orders& orders);

// --- Claims (claim_attacks.cc) -------------------------------------------------------------------

Tally ClaimStorm(const Orders& orders);

// --- Charges of kind driver (driver_attacks.cc) --------------------------------------------------

Tally DriverStorm(const Orders& orders);

// --- Pages of tenants' memory (page_attacks.cc) --------------------------------------------------

Tally PageStorm(const Orders& orders);

// --- Facts of pods (pod_attacks.cc) --------------------------------------------------------------

Tally FactFlood(const Orders& orders);
Tally TellPods(const Orders& orders);

// --- Traces (trace_attacks.cc) -------------------------------------------------------------------

Tally TraceStorm(const Orders& orders);

// --- The view socket (view_attacks.cc) -----------------------------------------------------------

Tally ViewStorm(const Orders& orders);
Tally ViewHangUp(const Orders& orders);

// --- Tenants made by sessions (tenant_attacks.cc) ------------------------------------------------

Tally TenantStorm(const Orders& orders);
Tally LastingTenantStorm(const Orders& orders);

// --- Sessions (session_attacks.cc) ---------------------------------------------------------------

Tally BadGreetings(const Orders& orders);
Tally TakeSessions(const Orders& orders);
Tally Resume(const Orders& orders);
Tally NeverRead(const Orders& orders);
Tally SayNothing(const Orders& orders);
Tally Garbage(const Orders& orders);

}  // namespace gpumem::hostile
