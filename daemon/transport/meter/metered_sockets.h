// Meters what gRPC reads and writes, before gRPC sees it.
//
// gRPC 1.51 neither bounds the work that frames without a call make (RFC 9113, section 10.5;
// CVE-2023-44487), nor how many calls a peer with many connections has at a time, nor lets a
// program see the frames of a connection. A proxy in front of it would cost every call two more
// thread switches. So this library defines the functions with which gRPC serves its sockets: a
// definition in the program is found before that of the C library. They call the C library's, and
// for the sockets that this library was told to meter
//
//   recvmsg    counts the frames. When their budget (frame_budget.h) decides so, it fails as if the
//              peer had reset the connection, and gRPC closes it. While the window of calls
//              (call_window.h) is full, it says that nothing has come yet.
//   sendmsg    counts the answers, which make room in that window.
//   epoll_ctl  remembers how gRPC waits for the socket, to wake it when there is room again: gRPC
//              is told of what comes once (EPOLLET), and EPOLL_CTL_MOD has it told again.
//   close      ends the metering.
//
// A gRPC that reads or waits by other means would not be metered. api_servers_test fails then.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "daemon/transport/meter/call_window.h"
#include "daemon/transport/meter/frame_budget.h"

namespace gpumemd {

// Meters this connected stream socket, from which nothing has been read yet and for which nobody
// waits yet, until it is closed with close(). Thread-safe.
//   RESOURCE_EXHAUSTED  the number is higher than can be metered (2^20)
absl::Status MeterSocket(int socket, std::shared_ptr<FrameBudget> budget,
                         std::shared_ptr<CallWindow> window);

// Has gRPC read the next of the sockets that the window holds, if there is room because other calls
// wait. To be called from time to time while some are held. Thread-safe.
void ResumeReads(const std::shared_ptr<CallWindow>& window);

}  // namespace gpumemd
