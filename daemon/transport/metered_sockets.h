// Meters what gRPC reads, before gRPC sees it.
//
// gRPC 1.51 neither bounds the work that frames without a call make (RFC 9113, section 10.5;
// CVE-2023-44487) nor lets a program see the frames of a connection. A proxy in front of it would
// cost every call two more thread switches. So this library defines recvmsg(), with which gRPC
// reads its sockets: the definition in the program is found before that of the C library. It calls
// the C library's, and counts the frames of the sockets that it was told to meter. When their
// budget (frame_budget.h) decides so, the read fails as if the peer had reset the connection, and
// gRPC closes it.
//
// A gRPC that reads by other means would not be metered. api_servers_test fails then.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "daemon/transport/frame_budget.h"

namespace gpumemd {

// Meters reads of this connected stream socket, from which nothing has been read yet, until it is
// closed. Whatever gets its number after that is not metered. Thread-safe.
//   RESOURCE_EXHAUSTED  the number is higher than can be metered (2^20)
absl::Status MeterReads(int socket, std::shared_ptr<FrameBudget> budget);

}  // namespace gpumemd
