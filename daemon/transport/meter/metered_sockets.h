// SPDX-License-Identifier: Apache-2.0
// Meters what gRPC reads and writes, before gRPC sees it.
//
// gRPC 1.51 does not bound the work of frames without a call (RFC 9113, section 10.5;
// CVE-2023-44487). It does not bound the calls of a peer with many connections, and does not show a
// program the frames of a connection. A proxy in front of it would cost every call two more thread
// switches. So this library defines the functions with which gRPC serves its sockets: the linker
// finds a program's definition before the C library's. They call the C library's functions. For
// sockets that this library was told to meter, they also do this:
//
//   recvmsg    counts the frames. When their budget (frame_budget.h) decides so, it fails as if the
//              peer had reset the connection, and gRPC closes it. While the window of calls
//              (call_window.h) is full, it reports that no data has arrived.
//              A connection that ends while calls are open waits for its turn in the same way.
//              gRPC takes 0.1 ms for each call that it cancels, and the peers of a tenant may all
//              end in one instant.
//   sendmsg    counts the answers, which make room in that window.
//   epoll_ctl  remembers how gRPC waits for the socket, to wake gRPC when there is room again:
//              with EPOLLET gRPC is notified once, and EPOLL_CTL_MOD notifies it again.
//   close      ends the metering, and makes room for the end of another connection.
//
// A gRPC that reads or waits by other means would not be metered. api_servers_flood_test fails
// then.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "daemon/transport/meter/call_window.h"
#include "daemon/transport/meter/frame_budget.h"

namespace gpumemd {

// Meters a connected stream socket until it is closed with close(). `window` is for calls in
// progress, `ends` for open calls of connections that are being closed. Requires that nothing has
// been read from the socket yet, and that no thread waits for it. Thread-safe.
//   RESOURCE_EXHAUSTED  the number is higher than can be metered (2^20)
absl::Status MeterSocket(int socket, std::shared_ptr<FrameBudget> budget,
                         std::shared_ptr<CallWindow> window, std::shared_ptr<CallWindow> ends);

// Makes gRPC read the next socket that the window holds, if calls that only wait have made room.
// Both sorts of windows need it.
// Call it periodically while some are held. Thread-safe.
void ResumeReads(const std::shared_ptr<CallWindow>& window);

}  // namespace gpumemd
