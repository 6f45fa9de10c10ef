// SPDX-License-Identifier: Apache-2.0
// Publications of files: a model goes from its files into memory once, and every process attaches
// to its arrays by name.
//
//   gpumem::PublishFiles(*client, "llama", {"model.safetensors.index.json"});
//   auto attached = client->Attach("llama");
//
// The publication's metadata names the arrays, with their type, shape and place, and a checksum of
// each (docs/reference/publication.md). gpumem.attach() of the Python package reads it, and so do
// `gpumemctl verify` and `gpumemctl fetch`, which writes the same files again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"

namespace gpumem {

enum class FileFormat {
  kByName,       // by each file's name: safetensors if it ends so, else bytes
  kBytes,        // each file is one array of bytes
  kSafetensors,  // each file is of the safetensors format
};

struct PublishFilesOptions {
  FileFormat format = FileFormat::kByName;
  DeviceName device;
  Kind kind = Kind::kDefault;  // VMM or PINNED
  // Computes a checksum of each array while it is copied.
  bool checksums = true;
  // These as in PublishOptions.
  std::string content_id;
  PublicationAccess access = PublicationAccess::kTenant;
  bool ephemeral = false;
  absl::Duration expire_after = absl::InfiniteDuration();
  // Called by the calling thread several times a second, with the bytes that were copied and those
  // of all files. An error ends the work with that status. Null: nothing is called.
  std::function<absl::Status(uint64_t done, uint64_t total)> progress;
  // For each answer of the daemon.
  std::optional<absl::Duration> timeout;
};

struct PublishedFiles {
  struct File {
    std::string name;  // without a folder
    uint64_t bytes = 0;
    // Of a file that is one array of bytes, and if checksums were computed: 32 hexadecimal digits.
    std::optional<std::string> xxh128;
  };
  uint64_t version = 0;
  std::vector<File> files;
  uint64_t arrays = 0;  // of all files
  uint64_t bytes = 0;
};

// Copies the files into new memory of this Client's tenant and publishes it. Several threads read,
// check and copy; together they have at most 384 MiB of pinned host memory. A safetensors index
// ("*.safetensors.index.json") stands for the files that it names.
//   NOT_FOUND           a file, or a shard that the name of another one tells of
//   PERMISSION_DENIED   a file cannot be read
//   INVALID_ARGUMENT    a file is empty, or not what its format says. Nothing was acquired
//   RESOURCE_EXHAUSTED  with a Denial: there is no room
//   ABORTED             a file changed while it was read
//   DATA_LOSS           a disk's error
//   and those of Client::Acquire, Client::Publish and `progress`. Nothing is held after an error.
absl::StatusOr<PublishedFiles> PublishFiles(Client& client, absl::string_view name,
                                            absl::Span<const std::string> paths,
                                            const PublishFilesOptions& options = {});

// Returns the content id of files, for Client::AttachOrClaim: 32 bytes, equal only for files of
// equal names (without folders) and bytes, by SHA-256 (docs/reference/publication.md). Reads the
// files with several threads. The hash of each is cached in ~/.cache/gpumem (XDG_CACHE_HOME) by
// device, inode, size, mtime and ctime, so that files which have not changed are not read again. An
// index stands for its files.
//   NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT, DATA_LOSS, ABORTED  as PublishFiles
//   and those of `poll`, which is called several times a second while files are read
absl::StatusOr<std::string> ContentIdOf(absl::Span<const std::string> paths,
                                        FileFormat format = FileFormat::kByName,
                                        const std::function<absl::Status()>& poll = nullptr);

}  // namespace gpumem
