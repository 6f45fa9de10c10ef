// SPDX-License-Identifier: Apache-2.0
// A soak: the mixed load of all features with random faults, on a real gpumemd under gpumem-keeper.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/soak/crew.h"
#include "tests/soak/operator.h"
#include "tests/soak/sample.h"
#include "tests/support/kept_daemon.h"

namespace gpumem::soak {

struct SoakOptions {
  absl::Duration time = absl::Minutes(10);
  std::string backend = "host";
  std::string out;  // a folder for the results
  uint64_t seed = 0;
  absl::Duration pause = absl::Milliseconds(30);  // of each worker after an operation
};

class Soak {
 public:
  explicit Soak(SoakOptions options);
  ~Soak();
  // Runs it, and writes samples.csv and daemon.log. Returns an error if it cannot be run. SIGTERM
  // and SIGINT end the load early. After SIGUSR1 there is none until SIGUSR2, which does not count
  // as time of the soak.
  absl::Status Run();

  const std::vector<Figures>& rows() const { return rows_; }
  // How often each operation, fault and task of operators took place.
  Counts counts() const;
  // What must not have happened, in words.
  std::vector<std::string> wrong() const;
  // The operations, faults and tasks that must take place in a soak of a minute.
  static std::vector<std::string> Needed(const std::string& backend);

 private:
  absl::Status Start();
  void Load();
  // Waits for SIGUSR2. Returns how long.
  absl::Duration Rest();
  // One fault, but of the daemon.
  void Fault();
  void Sample(bool calm);
  void CheckCalm();
  // Ends the load, and checks that nothing is left.
  void End();
  Figures Look();
  absl::Duration Gap(absl::Duration mean);
  void Wrong(const std::string& words) { wrong_.push_back(words); }

  const SoakOptions options_;
  std::mt19937_64 random_;
  std::string folder_;
  std::unique_ptr<testing::KeptDaemon> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<Operator> operator_;
  std::unique_ptr<Crew> crew_;
  absl::Time begin_;
  Figures before_;
  std::vector<Figures> rows_;
  Counts faults_;
  std::vector<std::string> bag_, attacks_;
  std::vector<std::string> wrong_;
};

}  // namespace gpumem::soak
