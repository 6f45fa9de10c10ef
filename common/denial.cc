// SPDX-License-Identifier: Apache-2.0
#include "common/denial.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumem {
namespace {

constexpr char kDenialUrl[] = "type.googleapis.com/gpumem.v1.Denial";

// A refusal in words: the fact, and advice.
struct Sentence {
  std::string fact;
  std::string help;
};

std::string Count(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

// "tenant training asked for 4.00 GiB on GPU-1".
std::string AskedBytes(const v1::Denial& d, absl::string_view who) {
  std::string text = absl::StrCat(who, " asked for ", FormatBytes(d.asked()));
  if (!d.device_uuid().empty()) absl::StrAppend(&text, " on ", d.device_uuid());
  return text;
}

// Returns the used amount that must be freed for the request to fit.
uint64_t Missing(const v1::Denial& d) {
  const uint64_t room = d.limit() > d.used() ? d.limit() - d.used() : 0;
  return d.asked() > room ? d.asked() - room : 0;
}

// Returns the limit's owner, as a subject after the requester: "it", or "tenant ml, which it is
// under,".
std::string Limited(const v1::Denial& d) {
  if (d.limited_tenant().empty() || d.limited_tenant() == d.tenant()) return "it";
  return absl::StrCat("tenant ", d.limited_tenant(), ", which it is under,");
}

std::string AskForHigher(const v1::Denial& d) {
  const std::string& whose = d.limited_tenant();
  return absl::StrCat("ask for a higher limit ",
                      whose.empty() || whose == d.tenant() ? "" : absl::StrCat("of ", whose, " "),
                      "(gpumemctl quota set)");
}

// Returns " (a 30.00 GiB, b 8.00 GiB)": the holders of the used amount. Empty if unknown, or if the
// requester is the only holder.
std::string HeldBy(const v1::Denial& d, std::string (*format)(uint64_t)) {
  if (d.holders().empty()) return "";
  if (d.holders_size() == 1 && d.holders(0).tenant() == d.tenant()) return "";
  const auto append = [format](std::string* text, const v1::Denial::Holder& holder) {
    absl::StrAppend(text, holder.tenant(), " ", format(holder.used()));
  };
  return absl::StrCat(" (", absl::StrJoin(d.holders(), ", ", append), ")");
}
std::string BytesHeldBy(const v1::Denial& d) {
  return HeldBy(d, [](uint64_t bytes) { return FormatBytes(bytes); });
}
std::string CountsHeldBy(const v1::Denial& d) {
  return HeldBy(d, [](uint64_t count) { return absl::StrCat(count); });
}

// Returns the sentence for a limit in bytes; `where` is "there" or "over all devices".
Sentence ByteLimit(const v1::Denial& d, absl::string_view who, absl::string_view where) {
  const std::string limited = Limited(d);
  const std::string higher = AskForHigher(d);
  if (d.asked() > d.limit()) {
    return {absl::StrCat(AskedBytes(d, who), "; ",
                         limited == "it" ? absl::StrCat("its limit ", where, " is ")
                                         : absl::StrCat(limited, " has a limit ", where, " of "),
                         FormatBytes(d.limit())),
            absl::StrCat("ask for less, or ", higher)};
  }
  return {absl::StrCat(AskedBytes(d, who), "; ", limited, " holds ", FormatBytes(d.used()),
                       " of its ", FormatBytes(d.limit()), " limit ", where, BytesHeldBy(d)),
          absl::StrCat("release ", FormatBytes(Missing(d)), " or ", higher)};
}

// Returns the sentence for a limit on a count.
Sentence CountLimit(const v1::Denial& d, absl::string_view who, absl::string_view noun,
                    absl::string_view helps) {
  return {absl::StrCat(who, " asked for ", Count(d.asked(), noun), "; ", Limited(d), " has ",
                       d.used(), " of the ", d.limit(), " that it may have", CountsHeldBy(d)),
          absl::StrCat(helps, " or ", AskForHigher(d))};
}

// Returns the owner of the count, if only that is asked for.
std::string Under(const v1::Denial& d, absl::string_view who) {
  if (Limited(d) == "it") return std::string(who);
  return absl::StrCat("tenant ", d.limited_tenant(), ", which ", who, " is under,");
}

Sentence Tell(const v1::Denial& d) {
  const std::string who = d.tenant().empty() ? "this process" : absl::StrCat("tenant ", d.tenant());
  switch (d.cause()) {
    case v1::Denial::CAUSE_DEVICE_LIMIT:
      return ByteLimit(d, who, "there");
    case v1::Denial::CAUSE_TOTAL_LIMIT:
      return ByteLimit(d, who, "over all devices");
    case v1::Denial::CAUSE_CAPACITY:
      if (d.asked() > d.limit()) {
        return {absl::StrCat(AskedBytes(d, who), "; the device has ", FormatBytes(d.limit()),
                             " to hand out in all"),
                "ask for less, or spread it over several devices"};
      }
      return {absl::StrCat(AskedBytes(d, who), "; ", FormatBytes(d.used()), " of the device's ",
                           FormatBytes(d.limit()), " are taken", BytesHeldBy(d)),
              absl::StrCat("wait until ", FormatBytes(Missing(d)),
                           " are released (gpumemctl segments shows by whom they are held) or use "
                           "another device")};
    case v1::Denial::CAUSE_DRIVER:
      return {absl::StrCat(AskedBytes(d, who),
                           "; the driver has too little memory left, since "
                           "programs use the device without asking gpumemd"),
              "stop them (nvidia-smi shows them) or use another device"};
    case v1::Denial::CAUSE_UNBROKERED:
      return {absl::StrCat(who, " asked for ", FormatBytes(d.asked()), "; its processes use ",
                           FormatBytes(d.used()), " on ", d.device_uuid(),
                           " that they took without asking gpumemd"),
              "free that first, or end the processes (gpumemctl ps shows which)"};
    case v1::Denial::CAUSE_MAX_SEGMENTS:
      return CountLimit(d, who, "segment", "release some, ask for fewer and larger ones,");
    case v1::Denial::CAUSE_MAX_PUBLICATIONS:
      return CountLimit(d, who, "publication",
                        "unpublish some (gpumemctl publications lists them)");
    case v1::Denial::CAUSE_MAX_SESSIONS:
      return CountLimit(d, who, "session", "end some of its processes (gpumemctl ps lists them)");
    case v1::Denial::CAUSE_MAX_IN_FLIGHT:
      return {absl::StrCat(Under(d, who), " has ", Count(d.used(), "call"),
                           " waiting for an answer, of the ", d.limit(), " that it may have",
                           CountsHeldBy(d)),
              "call again when one has been answered, or make fewer calls at a time"};
    case v1::Denial::CAUSE_MAX_WAITING:
      return {absl::StrCat(Under(d, who), " has ", Count(d.used(), "request"),
                           " waiting for memory, of the ", d.limit(), " that it may have",
                           CountsHeldBy(d)),
              absl::StrCat("ask again when one of them is over, or ", AskForHigher(d))};
    case v1::Denial::CAUSE_GUARANTEES:
      return {absl::StrCat(AskedBytes(d, who), "; ", FormatBytes(d.used()), " of the device's ",
                           FormatBytes(d.limit()), " are taken or guaranteed to others",
                           BytesHeldBy(d)),
              absl::StrCat("wait until ", FormatBytes(Missing(d)),
                           " are released, take the memory as revocable, which may be what is "
                           "guaranteed and idle, or ask for a guarantee (gpumemctl quota set)")};
    case v1::Denial::CAUSE_QUEUE:
      return {absl::StrCat(AskedBytes(d, who),
                           "; what is free there is waited for by requests that go first",
                           BytesHeldBy(d)),
              "wait in the queue, too, or longer (gpumemctl hold --wait; AcquireOptions::wait), or "
              "use another device"};
    case v1::Denial::CAUSE_DAEMON_LIMIT:
      return {absl::StrCat(who, " asked for ", d.asked(), " more than the daemon can keep; ",
                           d.used(), " of its ", d.limit(), " are in use by all tenants together"),
              "release some, or have the daemon's own limits raised"};
    default:
      return {absl::StrCat(who, " was refused what it asked for"), "ask for less, or later"};
  }
}

}  // namespace

absl::Status DenialError(const v1::Denial& denial) {
  const Sentence sentence = Tell(denial);
  v1::Denial told = denial;
  if (told.help().empty()) told.set_help(sentence.help);
  absl::Status status =
      absl::ResourceExhaustedError(absl::StrCat(sentence.fact, ": ", told.help()));
  AttachDenial(told, &status);
  return status;
}

void AttachDenial(const v1::Denial& denial, absl::Status* status) {
  status->SetPayload(kDenialUrl, absl::Cord(denial.SerializeAsString()));
}

std::optional<v1::Denial> DenialOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kDenialUrl);
  v1::Denial denial;
  if (!payload.has_value() || !denial.ParseFromString(std::string(*payload))) return std::nullopt;
  return denial;
}

}  // namespace gpumem
