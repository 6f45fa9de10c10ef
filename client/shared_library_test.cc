// SPDX-License-Identifier: Apache-2.0
// A program that uses only the public interface: client.h, pool.h, gpumem.h, libgpumem.so.
#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gpumem/client.h"
#include "gpumem/demote.h"
#include "gpumem/pool.h"
#include "gpumem/suspend.h"

namespace gpumem {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the loaded library; null, with a failed expectation, if there is none.
void* Library() {
  void* const library = dlopen("libgpumem.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr) << dlerror();
  return library;
}

// Returns gpumem.h and the headers that it includes.
std::string CHeaders() {
  const std::string folder = "client/include/gpumem/";
  std::string headers = ReadFile(folder + "gpumem.h");
  const std::regex include(R"(\n#include .(gpumem_[a-z_]+\.h))");
  const std::string top = headers;
  for (std::sregex_iterator i(top.begin(), top.end(), include), end; i != end; ++i) {
    headers += ReadFile(folder + (*i)[1].str());
  }
  return headers;
}

// Returns every function that gpumem.h declares.
std::set<std::string> CFunctions() {
  const std::string headers = CHeaders();
  // Comments mention some, too, but never at the start of a line.
  const std::regex declaration(R"(\n[a-z][a-z0-9_ *]*[ *](gpumem_[a-z_]+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator i(headers.begin(), headers.end(), declaration), end; i != end; ++i) {
    names.insert((*i)[1]);
  }
  return names;
}

// Returns every symbol that a shared library exports.
std::set<std::string> Exports(const std::string& path) {
  const std::string file = ReadFile(path);
  const auto at = [&](uint64_t offset) { return file.data() + offset; };
  ElfW(Ehdr) header;
  std::memcpy(&header, at(0), sizeof(header));
  std::vector<ElfW(Shdr)> sections(header.e_shnum);
  std::memcpy(sections.data(), at(header.e_shoff), sections.size() * sizeof(sections[0]));
  std::set<std::string> names;
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_DYNSYM) continue;
    std::vector<ElfW(Sym)> symbols(section.sh_size / sizeof(ElfW(Sym)));
    std::memcpy(symbols.data(), at(section.sh_offset), section.sh_size);
    for (const ElfW(Sym) & symbol : symbols) {
      if (symbol.st_shndx == SHN_UNDEF || ELF64_ST_BIND(symbol.st_info) == STB_LOCAL) continue;
      names.insert(at(sections[section.sh_link].sh_offset + symbol.st_name));
    }
  }
  return names;
}

std::string Demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : "";
}

TEST(SharedLibraryTest, ExportsAllOfClientH) {
  // Every call is linked; the first one fails, since there is no daemon.
  const auto use_everything = []() -> absl::Status {
    auto client = Client::Connect({.runtime_dir = "/tmp/no-such-folder"});
    if (!client.ok()) return client.status();
    const CancelToken cancel;
    cancel.Cancel();
    if (!cancel.cancelled()) return absl::InternalError("");
    Segment segment = (*client)->Acquire({.bytes = 1, .cancel = cancel}).value();
    Segment other;
    other = std::move(segment);
    Segment third(std::move(other));
    (*client)->AcquireMany({.bytes = 1}, 2).value().clear();
    (*client)->Open(third.Share().value().value).value();
    (*client)->OpenMany({third.Share().value().value}).value().clear();
    Event event = (*client)->CreateEvent({.name = "event"}).value();
    Event opened;
    opened = std::move(event);
    Event moved(std::move(opened));
    moved = (*client)->OpenEvent("event").value();
    (*client)->OpenEvents(third).value().clear();
    moved.Record(nullptr).IgnoreError();
    moved.Wait(nullptr).IgnoreError();
    moved.Synchronize().IgnoreError();
    const bool told = moved.Done().value() && moved.valid() && moved.event() != nullptr;
    (*client)->StartWatch({}).value().reset();
    (*client)
        ->ServeSuspensions({.segments = [] { return std::vector<Segment*>(); }})
        .value()
        .reset();
    (*client)->ReportActivity();
    Segment* const some[] = {&third};
    (*client)->Suspend(some).IgnoreError();
    (*client)->Suspend(some, {.quiesce = [] { return absl::OkStatus(); }}).IgnoreError();
    (*client)->Resume(some, {.wait = absl::Seconds(1), .cancel = cancel}).IgnoreError();
    if (third.suspended()) (*client)->Resume(some).IgnoreError();
    (*client)->Demote(some).IgnoreError();
    (*client)->Demote(some, {.wait = absl::Seconds(1), .cancel = cancel}).IgnoreError();
    if (third.demoted()) (*client)->Promote(some).IgnoreError();
    (*client)->Promote(some, {.wait = absl::Seconds(1)}).IgnoreError();
    (*client)->GetUsage().value();
    (*client)->Devices().value();
    const std::string words = (*client)->tenant() + (*client)->rule() +
                              (*client)->daemon_version() + third.device_uuid() + third.tag();
    const uint64_t numbers = (*client)->session_id() + third.size() + third.lease_id() +
                             third.segment_id() + third.reused() + third.revocable() +
                             third.scratch() + words.size() + told + moved.handle()[0] +
                             third.registered() + third.ipc_handle().value()[0] +
                             third.export_data().value()[0];
    if (third.fd().value() == third.pool_fd().value()) return absl::OkStatus();
    if (third.data() == nullptr || third.kind() != Kind::kVmm ||
        third.backend() != Backend::kHost || numbers == 0) {
      return absl::InternalError("");
    }
    return third.Release();
  };
  const absl::Status status = use_everything();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(GetDenial(status).has_value());
  EXPECT_EQ(KindName(Kind::kVmm), "vmm");
  EXPECT_EQ(KindName(Kind::kMempool), "mempool");
  EXPECT_EQ(KindName(Kind::kIpc), "ipc");
  EXPECT_EQ(KindName(Kind::kPinned), "pinned");
  EXPECT_EQ(KindName(Kind::kDefault), "default");
}

TEST(SharedLibraryTest, ExportsAllOfPoolH) {
  const auto use_everything = []() -> absl::Status {
    auto client = Client::Connect({.runtime_dir = "/tmp/no-such-folder"});
    if (!client.ok()) return client.status();
    const std::shared_ptr<Client> shared_client = *std::move(client);
    auto pool = Pool::Create(shared_client, {}).value();
    Block block = pool->TryAllocate(1, nullptr);
    if (pool->TryFree(block.data, nullptr)) block = pool->AllocateSynchronized(1).value();
    block = pool->Allocate(1, nullptr).value();
    SharedBlock shared;
    shared = OpenBlock(*shared_client, pool->Share(block).value().value).value();
    pool->Free(pool->Find(block.data).value(), nullptr).IgnoreError();
    pool->Free(block.data, nullptr).IgnoreError();
    pool->StreamWaits(nullptr, nullptr).IgnoreError();
    pool->ForgetStream(nullptr).IgnoreError();
    pool->Suspend().IgnoreError();
    pool->Suspend({.quiesce = [] { return absl::OkStatus(); }}).IgnoreError();
    if (pool->suspended()) pool->Resume().IgnoreError();
    pool->Resume({.wait = absl::Seconds(1)}).IgnoreError();
    uint64_t numbers = shared.bytes() + pool->Trim(0).value() + pool->FreeAllBlocks().value() +
                       pool->FreeAllBlocks(nullptr).value();
    pool->SetLimit(1).IgnoreError();
    pool->SetLimitFraction(1).IgnoreError();
    pool->SetReleaseThreshold(1);
    pool->SetGivesUnderPressure(false);
    pool->SetReusePolicy({});
    pool->ResetPeaks();
    pool->SetHook({});
    pool->SetOutOfMemoryCallback({});
    numbers += pool->limit() + pool->Stats().segments + pool->MemGetInfo().value().free_bytes +
               pool->device_uuid().size();
    if (pool->kind() != Kind::kVmm || pool->backend() != Backend::kHost || numbers == 0) {
      return absl::InternalError("");
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(use_everything().code(), absl::StatusCode::kUnavailable);
}

TEST(SharedLibraryTest, ExportsAllOfGpumemH) {
  void* const library = Library();
  ASSERT_NE(library, nullptr);
  const std::set<std::string> functions = CFunctions();
  EXPECT_GE(functions.size(), 90u);
  for (const std::string& name : functions)
    EXPECT_NE(dlsym(library, name.c_str()), nullptr) << name;
  const auto version = reinterpret_cast<uint32_t (*)()>(dlsym(library, "gpumem_version"));
  EXPECT_EQ(version() >> 16, 1u);
  dlclose(library);
}

TEST(SharedLibraryTest, ExportsNothingElse) {
  void* const library = Library();
  ASSERT_NE(library, nullptr);
  link_map* map = nullptr;
  ASSERT_EQ(dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
  const std::set<std::string> functions = CFunctions();
  const std::regex cpp(
      R"(gpumem::(Attachment|CancelToken|Claim|Client|Segment|Event|Pool)::[A-Za-z_~=]+(\[abi:cxx11\])?\(.*)"
      R"(|gpumem::(KindName|GetDenial|OpenBlock|PublishFiles|ContentIdOf)\(.*)");
  std::set<std::string> exports = Exports(map->l_name);
  EXPECT_GT(exports.size(), functions.size());
  for (const std::string& name : exports) {
    const bool is_ours = functions.count(name) > 0 || std::regex_match(Demangled(name), cpp);
    EXPECT_TRUE(is_ours) << name << " " << Demangled(name);
  }
  // Private symbols are not exported either.
  for (const char* name : {"gpumem::Client::Client(", "gpumem::Client::Mapped(",
                           "gpumem::Client::AcquireIn(", "gpumem::Pool::Pool(",
                           "gpumem::Attachment::Attachment(std::", "gpumem::Claim::Claim(std::"}) {
    for (const std::string& one : exports) {
      EXPECT_THAT(Demangled(one), ::testing::Not(::testing::StartsWith(name)));
    }
  }
  dlclose(library);
}

}  // namespace
}  // namespace gpumem
