// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/options.h"

#include <getopt.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "common/version.h"

namespace gpumemd::keeper {
namespace {

constexpr char kUsage[] =
    R"(usage: gpumem-keeper [OPTIONS] [--] COMMAND [ARGUMENTS]

Run gpumemd, keep the descriptors of its memory, and restart it with all of them
when it dies. For places without systemd, such as containers, where it can be
process 1. Speaks the protocol of systemd's FD store (sd_notify(3),
sd_listen_fds(3)). Keeper and daemon run as the same user.

Example: gpumem-keeper -- gpumemd --config FILE

  --max-fds N              keep at most N descriptors (default: 16384)
  --healthy-after SECONDS  delay restarts after earlier deaths (default: 10)
  --help, --version        show this help or the version, and exit

The limit of open files may lower --max-fds. A restart is delayed more and more,
up to 5 seconds, if the daemon died within --healthy-after and was not ready
(READY=1) by then, or if ready daemons die more than 10 times a minute. Other
restarts are at once.

Signals: SIGTERM, SIGINT and SIGHUP are passed on to the daemon. After SIGTERM
or SIGINT the keeper ends with the daemon and drops what it kept. The same
happens if the daemon exits with 0. SIGUSR1 ends the daemon (SIGTERM) and starts
the next one with everything kept: for an upgrade. If the keeper is killed, the
daemon continues, but nothing keeps its memory.

Environment: the daemon's notifications (READY=1, STATUS=, ...) are passed on to
$NOTIFY_SOCKET. The daemon's socket is in the first writable folder of $TMPDIR,
$XDG_RUNTIME_DIR, /run and /tmp.

Exit codes: the daemon's, or 128 plus the signal that ended it. 2: wrong usage,
or the daemon exited with 2 (wrong flags or configuration) at its first start.
127: the daemon cannot be run.
)";

bool ParseNumber(const char* text, double low, double high, double& number) {
  const char* end = text + strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  return error == std::errc() && stop == end && std::isfinite(number) && number >= low &&
         number <= high;
}

}  // namespace

std::optional<Options> ParseOptions(int argc, char** argv, int& exit_code) {
  enum { kMaxFds = 1, kHealthyAfter, kHelp, kVersion };
  static const option kLong[] = {{"max-fds", required_argument, nullptr, kMaxFds},
                                 {"healthy-after", required_argument, nullptr, kHealthyAfter},
                                 {"help", no_argument, nullptr, kHelp},
                                 {"version", no_argument, nullptr, kVersion},
                                 {}};
  const auto complain = [&exit_code] {
    fputs("See gpumem-keeper --help.\n", stderr);
    exit_code = 2;
    return std::nullopt;
  };
  Options options;
  double number = 0;
  while (true) {
    // "+": arguments after the command are the command's.
    const int found = getopt_long(argc, argv, "+", kLong, nullptr);
    if (found == -1) break;
    switch (found) {
      case kMaxFds:
        if (!ParseNumber(optarg, 1, 1'000'000, number) || number != std::floor(number)) {
          fprintf(stderr, "gpumem-keeper: --max-fds has to be 1 to 1000000, not \"%s\"\n", optarg);
          return complain();
        }
        options.max_fds = static_cast<size_t>(number);
        break;
      case kHealthyAfter:
        if (!ParseNumber(optarg, 0, 86'400, number)) {
          fprintf(stderr,
                  "gpumem-keeper: --healthy-after has to be 0 to 86400 seconds, not \"%s\"\n",
                  optarg);
          return complain();
        }
        options.healthy_after =
            std::chrono::milliseconds(static_cast<long>(std::ceil(number * 1000)));
        break;
      case kHelp:
        fputs(kUsage, stdout);
        exit_code = 0;
        return std::nullopt;
      case kVersion:
        puts("gpumem-keeper " GPUMEM_VERSION);
        exit_code = 0;
        return std::nullopt;
      default:  // getopt_long has printed the error
        return complain();
    }
  }
  options.command.assign(argv + optind, argv + argc);
  if (options.command.empty()) {
    fputs("gpumem-keeper: no command to run\n", stderr);
    return complain();
  }
  return options;
}

}  // namespace gpumemd::keeper
