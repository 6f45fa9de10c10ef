// SPDX-License-Identifier: Apache-2.0
// Publications of files: gpumem_client_publish_files, gpumem_content_id_of.
#include "gpumem/files.h"

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Bytes;
using gpumem::c_api::Call;
using gpumem::c_api::NullError;
using gpumem::c_api::OfProgram;
using gpumem::c_api::Read;
using gpumem::c_api::Text;
using gpumem::c_api::Texts;
using gpumem::c_api::TimeOrNone;
using gpumem::c_api::Timeout;
using gpumem::c_api::ToAccess;
using gpumem::c_api::ToKind;
using gpumem::c_api::Write;

namespace {

static_assert(GPUMEM_FILE_FORMAT_BY_NAME == static_cast<int>(gpumem::FileFormat::kByName));
static_assert(GPUMEM_FILE_FORMAT_BYTES == static_cast<int>(gpumem::FileFormat::kBytes));
static_assert(GPUMEM_FILE_FORMAT_SAFETENSORS == static_cast<int>(gpumem::FileFormat::kSafetensors));

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
  auto access = ToAccess(c.access);
  if (!access.ok()) return access.status();
  auto content_id = Bytes(c.content_id, c.content_id_bytes, "content_id");
  if (!content_id.ok()) return content_id.status();
  gpumem::PublishFilesOptions options{.format = *format,
                                      .device = Text(c.device),
                                      .kind = *kind,
                                      .checksums = c.without_checksums == 0,
                                      .access = *access,
                                      .ephemeral = c.ephemeral != 0,
                                      .expire_after = TimeOrNone(c.expire_after_ms),
                                      .content_id = *std::move(content_id),
                                      .timeout = Timeout(c.timeout_ms)};
  if (c.files_id != nullptr) {
    options.files_id.assign(static_cast<const char*>(c.files_id), GPUMEM_CONTENT_ID_BYTES);
  }
  if (c.progress != nullptr) {
    options.progress = [c](uint64_t done, uint64_t total) {
      return OfProgram(c.progress(c.context, done, total), "progress");
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
    if (poll != nullptr) stops = [&] { return OfProgram(poll(context), "poll"); };
    auto id = gpumem::ContentIdOf(*files, *of, stops);
    if (!id.ok()) return id.status();
    if (id->size() != GPUMEM_CONTENT_ID_BYTES) return absl::InternalError("a content id's size");
    std::memcpy(content_id, id->data(), id->size());
    return absl::OkStatus();
  });
}
