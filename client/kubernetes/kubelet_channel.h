// SPDX-License-Identifier: Apache-2.0
// Connections to the kubelet's sockets.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace gpumem::kubernetes {

// Returns a new channel, which takes messages of up to `most_bytes`. The kubelet may have
// been restarted, and then has another socket of that name: connect anew for each call.
std::shared_ptr<grpc::Channel> ConnectKubelet(const std::string& socket, int most_bytes);

}  // namespace gpumem::kubernetes
