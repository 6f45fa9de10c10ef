// How many calls gRPC has seen on a server, with those that never reached the server's services.
// From gRPC's own statistics (channelz): its interfaces for servers tell of a call only once its
// request has come whole.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>

namespace gpumemd {

struct CallCounts {
  uint64_t started = 0;
  uint64_t failed = 0;  // cancelled, reset, or answered with an error
};

// A server, and the number by which its statistics are asked for.
struct CountedServer {
  std::unique_ptr<grpc::Server> server;
  int64_t number = 0;
};

// Builds and starts the server. Of servers that are built at one time by other means than this
// function the numbers may be mixed up. Thread-safe.
// `server` is null where gRPC could not start it.
CountedServer StartCounted(grpc::ServerBuilder& builder);

CallCounts CountCalls(const CountedServer& server);

}  // namespace gpumemd
