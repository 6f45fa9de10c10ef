// SPDX-License-Identifier: Apache-2.0
// Publications of files: gpumem_client_publish_files, gpumem_content_id_of.
#include "gpumem/files.h"

#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::NullError;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Texts;
using gpumem::c_api::Time;
using gpumem::c_api::Timeout;
using gpumem::c_api::ToKind;
using gpumem::c_api::Write;

namespace {

static_assert(GPUMEM_FILE_FORMAT_BY_NAME == static_cast<int>(gpumem::FileFormat::kByName));
static_assert(GPUMEM_FILE_FORMAT_BYTES == static_cast<int>(gpumem::FileFormat::kBytes));
static_assert(GPUMEM_FILE_FORMAT_SAFETENSORS == static_cast<int>(gpumem::FileFormat::kSafetensors));

absl::Status EndedBy(const char* function, int code) {
  if (code == GPUMEM_OK) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat("the program's ", function, " function returned ", code));
}

absl::StatusOr<gpumem::FileFormat> ToFormat(int32_t format) {
  if (format < GPUMEM_FILE_FORMAT_BY_NAME || format > GPUMEM_FILE_FORMAT_SAFETENSORS) {
    return absl::InvalidArgumentError(absl::StrCat("there is no file format ", format));
  }
  return static_cast<gpumem::FileFormat>(format);
}

absl::StatusOr<gpumem::PublishFilesOptions> ToOptions(const gpumem_publish_files_options& c) {
  auto format = ToFormat(c.format);
  if (!format.ok()) return format.status();
  auto kind = ToKind(c.kind);
  if (!kind.ok()) return kind.status();
  if (c.content_id == nullptr && c.content_id_bytes > 0) return NullError("content_id");
  if (c.access < GPUMEM_PUBLICATION_ACCESS_TENANT || c.access > GPUMEM_PUBLICATION_ACCESS_ANY) {
    return absl::InvalidArgumentError(absl::StrCat("there is no publication access ", c.access));
  }
  gpumem::PublishFilesOptions options{
      .format = *format,
      .device = Text(c.device),
      .kind = *kind,
      .checksums = c.without_checksums == 0,
      .content_id = c.content_id_bytes == 0
                        ? std::string()
                        : std::string(static_cast<const char*>(c.content_id), c.content_id_bytes),
      .access = static_cast<gpumem::PublicationAccess>(c.access),
      .ephemeral = c.ephemeral != 0,
      .expire_after = c.expire_after_ms == 0 ? absl::InfiniteDuration() : Time(c.expire_after_ms),
      .timeout = Timeout(c.timeout_ms)};
  if (c.progress != nullptr) {
    options.progress = [c](uint64_t done, uint64_t total) {
      return EndedBy("progress", c.progress(c.context, done, total));
    };
  }
  return options;
}

}  // namespace

int gpumem_client_publish_files(gpumem_client* client, const char* name, const char* const* paths,
                                size_t count, const gpumem_publish_files_options* from,
                                gpumem_published_files* published) {
  return Call([&]() -> absl::Status {
    if (AnyNull(client, name)) return NullError("client or name");
    auto files = Texts(paths, count);
    if (!files.ok()) return files.status();
    auto c = Read(from);
    if (!c.ok()) return c.status();
    auto options = ToOptions(*c);
    if (!options.ok()) return options.status();
    if (published != nullptr) {  // a wrong struct_size must not be found afterwards
      if (absl::Status status = Write(gpumem_published_files{}, published); !status.ok()) {
        return status;
      }
    }
    auto done = gpumem::PublishFiles(*client->client, name, *files, *options);
    if (!done.ok() || published == nullptr) return done.status();
    return Write(gpumem_published_files{.struct_size = 0,
                                        .version = done->version,
                                        .files = done->files.size(),
                                        .arrays = done->arrays,
                                        .bytes = done->bytes},
                 published);
  });
}

int gpumem_content_id_of(const char* const* paths, size_t count, int32_t format,
                         int (*poll)(void* context), void* context, void* content_id) {
  return Call([&]() -> absl::Status {
    if (AnyNull(content_id)) return NullError("content_id");
    auto files = Texts(paths, count);
    if (!files.ok()) return files.status();
    auto of = ToFormat(format);
    if (!of.ok()) return of.status();
    std::function<absl::Status()> stops;
    if (poll != nullptr) stops = [&] { return EndedBy("poll", poll(context)); };
    auto id = gpumem::ContentIdOf(*files, *of, stops);
    if (!id.ok()) return id.status();
    if (id->size() != GPUMEM_CONTENT_ID_BYTES) return absl::InternalError("a content id's size");
    std::memcpy(content_id, id->data(), id->size());
    return absl::OkStatus();
  });
}
