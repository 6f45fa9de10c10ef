// SPDX-License-Identifier: Apache-2.0
// spank_gpumem.so, gpumem's plug-in of Slurm (spank(7)): the option --gpumem, and what happens on a
// node before and after a job.
//
// slurmd, slurmstepd, srun, sbatch and salloc load it. So it has no gRPC and no threads, and only
// the options' values as state. A program, gpumem-slurm, speaks to gpumemd and slurmctld, and may
// fail without harm to slurmd. Prolog and epilog run it with the job's facts. What it writes to its
// standard error goes into slurmd's log.
//
// Arguments in plugstack.conf: helper=PATH of gpumem-slurm, account=yes for figures in
// AdminComment, preload=yes and preload_library=PATH for programs that know nothing of gpumem. All
// others go to the helper.
#include <fcntl.h>
#include <slurm/slurm.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/slurm/spank/option.h"
#include "common/preload_library.h"

// The header declares functions of C without extern "C".
extern "C" {
#include <slurm/spank.h>
}

// SPANK_PLUGIN is for C: constants of C++ have internal linkage.
extern "C" {
extern const char plugin_name[] = "gpumem";
extern const char plugin_type[] = "spank";
extern const unsigned int plugin_version = SLURM_VERSION_NUMBER;
extern const unsigned int spank_plugin_version = 1;
}

namespace gpumem::slurm {
namespace {

constexpr char kDefaultHelper[] = "/usr/libexec/gpumem/gpumem-slurm";

// Holds a file job-ID for each job whose GPUs the prolog has chosen: their UUIDs, with commas.
constexpr char kDefaultStateFolder[] = "/run/gpumem-slurm";

// The value of --gpumem in this process, which has one job; null: it was not given.
Option* given = nullptr;

int OnOption(int, const char* text, int) {
  static Option option;
  const std::string wrong = ParseOption(text == nullptr ? "" : text, &option);
  if (!wrong.empty()) {
    slurm_error("--gpumem: %s", wrong.c_str());
    return -1;
  }
  given = &option;
  return 0;
}

// The value of --gpumem-preload in this process.
enum class Preload { kAsSite, kYes, kNo };
Preload preload = Preload::kAsSite;
// True if the job's processes need the library and this node lacks it.
bool lacks_preload = false;

bool ReadYes(std::string_view text, bool* yes) {
  *yes = text == "yes";
  return *yes || text == "no";
}

int OnPreload(int, const char* text, int) {
  bool yes = false;
  if (!ReadYes(text == nullptr ? "yes" : text, &yes)) {
    slurm_error("--gpumem-preload: \"%s\" is neither yes nor no", text);
    return -1;
  }
  preload = yes ? Preload::kYes : Preload::kNo;
  return 0;
}

spank_option& PreloadOption() {
  static char name[] = "gpumem-preload";
  static char argument[] = "yes|no";
  static char usage[] = "charge what the job allocates of CUDA without gpumem, too";
  static spank_option option = {name, argument, usage, 2, 0, OnPreload};
  return option;
}

spank_option& TheOption() {
  static char name[] = "gpumem";
  static char argument[] = "SIZE[,guarantee=SIZE,priority=N,wait=TIME]";
  static char usage[] = "GPU memory on each node: guaranteed to the job, and no more (such as 40G)";
  static spank_option option = {name, argument, usage, 1, 0, OnOption};
  return option;
}

// Writes the helper's words into slurmd's log, by lines.
void Log(int fd) {
  std::string text;
  char bytes[512];
  for (ssize_t size = 0;
       (size = read(fd, bytes, sizeof bytes)) > 0 || (size < 0 && errno == EINTR);) {
    if (size > 0 && text.size() < 64 * 1024) text.append(bytes, static_cast<size_t>(size));
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    slurm_info("gpumem: %s", text.substr(at, end - at).c_str());
    at = end + 1;
  }
}

// Runs a program and waits for it. Returns its exit code; -1 if it did not run or was killed.
int Run(std::vector<std::string> args) {
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int words[2];
  if (pipe2(words, O_CLOEXEC) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, words[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, words[1], STDERR_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(words[1]);
  int status = -1;
  if (error != 0) {
    slurm_error("gpumem: %s: %s", argv[0], strerror(error));
  } else {
    Log(words[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  close(words[0]);
  return error == 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns the value of an argument in plugstack.conf; empty: it is absent.
std::string Argument(std::string_view key, int ac, char** av) {
  std::string value;
  for (int i = 0; i < ac; ++i) {
    const std::string_view arg = av[i];
    if (arg.substr(0, key.size()) == key) value = arg.substr(key.size());
  }
  return value;
}

// True if the argument is for this plug-in alone, and not for the helper.
bool IsOwn(std::string_view arg) {
  for (const std::string_view key : {"helper=", "account=", "preload=", "preload_library="}) {
    if (arg.substr(0, key.size()) == key) return true;
  }
  return false;
}

// Runs the helper with words and the site's arguments. Returns its exit code.
int RunHelper(std::vector<std::string> args, int ac, char** av) {
  const std::string helper = Argument("helper=", ac, av);
  args.insert(args.begin(), helper.empty() ? kDefaultHelper : helper);
  for (int i = 0; i < ac; ++i) {
    if (!IsOwn(av[i])) args.emplace_back(av[i]);
  }
  return Run(args);
}

// Runs the helper for the job of this context. Returns 0, or -1 if it failed.
int RunForJob(const char* command, spank_t spank, int ac, char** av) {
  uint32_t job = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) {
    slurm_error("gpumem: %s: Slurm names no job", command);
    return -1;
  }
  std::vector<std::string> args = {command, "job=" + std::to_string(job)};
  if (uid_t user = 0; spank_get_item(spank, S_JOB_UID, &user) == ESPANK_SUCCESS) {
    args.push_back("user=" + std::to_string(user));
  }
  char* text = nullptr;
  if (spank_option_getopt(spank, &TheOption(), &text) == ESPANK_SUCCESS && text != nullptr) {
    args.push_back(std::string("option=") + text);
  }
  const int code = RunHelper(std::move(args), ac, av);
  if (code != 0) slurm_error("gpumem: %s of job %u failed (%d)", command, job, code);
  return code == 0 ? 0 : -1;
}

// Returns the GPUs that the prolog has chosen for the job (main.cc); empty: Slurm has, or none.
std::string ChosenGpus(spank_t spank, int ac, char** av) {
  uint32_t job = 0;
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return "";
  std::string folder = Argument("state_dir=", ac, av);
  if (folder.empty()) folder = kDefaultStateFolder;
  std::string gpus;
  std::getline(std::ifstream(folder + "/job-" + std::to_string(job)), gpus);
  return gpus;
}

// Sets a variable of the job's processes, unless the user has.
void SetDefault(spank_t spank, const char* name, const std::string& value) {
  spank_setenv(spank, name, value.c_str(), 0);
}

// True if the job's processes are to have libgpumem-preload.so.
bool Preloads(int ac, char** av) {
  if (preload != Preload::kAsSite) return preload == Preload::kYes;
  return Argument("preload=", ac, av) == "yes";
}

// True if the end of this step is to be told to slurmctld.
bool Accounts(spank_t spank, int ac, char** av) {
  uint32_t step = 0;
  // The step that keeps an allocation open ends after the job.
  return Argument("account=", ac, av) == "yes" &&
         spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step != SLURM_EXTERN_CONT;
}

// Preloads the library into the job's processes. Returns false if there is none: they would run
// without a limit.
bool SetPreload(spank_t spank, int ac, char** av) {
  std::string library = Argument("preload_library=", ac, av);
  if (library.empty()) library = FindPreload("/usr/bin");
  if (library.empty()) library = FindPreload("/usr/local/bin");
  // As the job's user, which access() would not ask: the real user is root.
  if (library.empty() || faccessat(AT_FDCWD, library.c_str(), R_OK, AT_EACCESS) != 0) {
    slurm_error(
        "gpumem: --gpumem-preload: this node has no %s (preload_library= in plugstack.conf)",
        library.empty() ? kPreloadLibrary : library.c_str());
    return false;
  }
  char others[8192] = {};
  // Absent, or longer than any that makes sense: only ours then.
  if (spank_getenv(spank, kPreloadVariable, others, sizeof others) != ESPANK_SUCCESS) *others = 0;
  return spank_setenv(spank, kPreloadVariable, PreloadBefore(library, others).c_str(), 1) ==
         ESPANK_SUCCESS;
}

}  // namespace
}  // namespace gpumem::slurm

extern "C" {

int slurm_spank_init(spank_t spank, int ac, char** av) {
  if (spank_context() == S_CTX_JOB_SCRIPT) return 0;
  if (spank_context() == S_CTX_SLURMD) {
    // slurmd starts, perhaps after it was killed in a prolog or epilog. The helper goes on by
    // itself.
    gpumem::slurm::RunHelper({"sweep", "background=1"}, ac, av);
    return 0;
  }
  for (spank_option* option : {&gpumem::slurm::TheOption(), &gpumem::slurm::PreloadOption()}) {
    if (spank_option_register(spank, option) != ESPANK_SUCCESS) return -1;
  }
  return 0;
}

// In slurmstepd, before the job's processes.
int slurm_spank_user_init(spank_t spank, int ac, char** av) {
  const gpumem::slurm::Option* given = gpumem::slurm::given;
  const std::string gpus = gpumem::slurm::ChosenGpus(spank, ac, av);
  if (!gpus.empty()) spank_setenv(spank, "CUDA_VISIBLE_DEVICES", gpus.c_str(), 1);
  const std::string sockets = gpumem::slurm::Argument("runtime_dir=", ac, av);
  if (!sockets.empty()) gpumem::slurm::SetDefault(spank, "GPUMEM_RUNTIME_DIR", sockets);
  gpumem::slurm::lacks_preload =
      gpumem::slurm::Preloads(ac, av) && !gpumem::slurm::SetPreload(spank, ac, av);
  if (given == nullptr || !given->wait_ms) return 0;
  gpumem::slurm::SetDefault(spank, "GPUMEM_POOL_WAIT", std::to_string(*given->wait_ms) + "ms");
  gpumem::slurm::SetDefault(spank, "GPUMEM_PRELOAD_WAIT_MS", std::to_string(*given->wait_ms));
  return 0;
}

// In each task, before its program. A failure of user_init would end the step, and srun would
// report success.
int slurm_spank_task_init(spank_t, int, char**) { return gpumem::slurm::lacks_preload ? -1 : 0; }

// In slurmstepd after a step, as root, and before slurmctld knows of its end.
int slurm_spank_exit(spank_t spank, int ac, char** av) {
  if (spank_context() != S_CTX_REMOTE || !gpumem::slurm::Accounts(spank, ac, av)) return 0;
  gpumem::slurm::RunForJob("account", spank, ac, av);
  return 0;
}

int slurm_spank_job_prolog(spank_t spank, int ac, char** av) {
  return gpumem::slurm::RunForJob("prolog", spank, ac, av);
}

int slurm_spank_job_epilog(spank_t spank, int ac, char** av) {
  return gpumem::slurm::RunForJob("epilog", spank, ac, av);
}

}  // extern "C"
