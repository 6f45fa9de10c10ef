// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/kubelet_channel.h"

#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {

std::shared_ptr<grpc::Channel> ConnectKubelet(const std::string& socket, int most_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(most_bytes);
  // Shares no connection with earlier channels: those pause after the kubelet was away.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace gpumem::kubernetes
