// SPDX-License-Identifier: Apache-2.0
#include "common/denial.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumem {
namespace {

constexpr char kDenialUrl[] = "type.googleapis.com/gpumem.v1.Denial";
constexpr char kTryAgainUrl[] = "type.googleapis.com/gpumem.TryAgain";

// A denial in words: the fact, and advice.
struct Sentence {
  std::string fact;
  std::string help;
};

std::string Count(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

// Returns " on GPU-1", or nothing for a cause that is not about one device.
std::string OnDevice(const v1::Denial& d) {
  return d.device_uuid().empty() ? "" : absl::StrCat(" on ", d.device_uuid());
}

// Returns "tenant training asked for 4.00 GiB on GPU-1".
std::string AskedBytes(const v1::Denial& d, absl::string_view who) {
  return absl::StrCat(who, " asked for ", FormatBytes(d.asked()), OnDevice(d));
}

// Returns the used amount that must be released for the request to fit.
uint64_t Missing(const v1::Denial& d) {
  const uint64_t room = d.limit() > d.used() ? d.limit() - d.used() : 0;
  return d.asked() > room ? d.asked() - room : 0;
}

// True if the limit is the requester's own, or of no tenant.
bool OwnLimit(const v1::Denial& d) {
  return d.limited_tenant().empty() || d.limited_tenant() == d.tenant();
}

// Returns the tenant with the limit, as a subject after the requester: "it", or "its parent tenant
// ml".
std::string Limited(const v1::Denial& d) {
  return OwnLimit(d) ? "it" : absl::StrCat("its parent tenant ", d.limited_tenant());
}

// Returns the tenant with the limit, as the first subject of a sentence: "tenant training", or
// "tenant ml, a parent of tenant training,".
std::string LimitedFirst(const v1::Denial& d, absl::string_view who) {
  if (OwnLimit(d)) return std::string(who);
  return absl::StrCat("tenant ", d.limited_tenant(), ", a parent of ", who, ",");
}

std::string AskForHigher(const v1::Denial& d) {
  return absl::StrCat("ask an operator for a higher limit ",
                      OwnLimit(d) ? "" : absl::StrCat("of ", d.limited_tenant(), " "),
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
                         OwnLimit(d) ? absl::StrCat("its limit ", where, " is ")
                                     : absl::StrCat("the limit of ", limited, " ", where, " is "),
                         FormatBytes(d.limit())),
            absl::StrCat("ask for less, or ", higher)};
  }
  return {absl::StrCat(AskedBytes(d, who), "; ", limited, " holds ", FormatBytes(d.used()),
                       " of its ", FormatBytes(d.limit()), " limit ", where, BytesHeldBy(d)),
          absl::StrCat("release ", FormatBytes(Missing(d)), ", or ", higher)};
}

// Returns the sentence for a limit on a count of objects.
Sentence CountLimit(const v1::Denial& d, absl::string_view who, absl::string_view noun,
                    absl::string_view helps) {
  return {absl::StrCat(who, " asked for ", Count(d.asked(), noun), "; ", Limited(d), " has ",
                       d.used(), " of at most ", d.limit(), CountsHeldBy(d)),
          absl::StrCat(helps, ", or ", AskForHigher(d))};
}

// Returns the sentence for a limit on calls or waiting requests; `all` is the used count in words.
Sentence CallLimit(const v1::Denial& d, absl::string_view who, absl::string_view all,
                   absl::string_view help) {
  return {absl::StrCat(LimitedFirst(d, who), " has ", all, "; the limit is ", d.limit(),
                       CountsHeldBy(d)),
          std::string(help)};
}

Sentence Capacity(const v1::Denial& d, absl::string_view who) {
  if (d.asked() > d.limit()) {
    return {absl::StrCat(AskedBytes(d, who), "; the device has ", FormatBytes(d.limit()),
                         " for all tenants together"),
            "ask for less, or use several devices"};
  }
  return {absl::StrCat(AskedBytes(d, who), "; ", FormatBytes(d.used()), " of the device's ",
                       FormatBytes(d.limit()), " are in use", BytesHeldBy(d)),
          absl::StrCat("wait until ", FormatBytes(Missing(d)),
                       " are released (gpumemctl segments shows the holders), or use another "
                       "device")};
}

// Returns the sentence for memory that is kept free for guarantees of other tenants: on a device,
// or under a limit, of a parent or of a tenant with members.
Sentence Guarantees(const v1::Denial& d, absl::string_view who) {
  const std::string whole = absl::StrCat(
      FormatBytes(d.limit()), OwnLimit(d) ? "" : absl::StrCat(" that ", Limited(d), " may hold"),
      d.device_uuid().empty() ? " over all devices" : " there");
  return {absl::StrCat(AskedBytes(d, who), "; ", FormatBytes(d.used()), " of the ", whole,
                       " are in use or guaranteed to other tenants", BytesHeldBy(d)),
          "wait until other tenants release memory, request a revocable lease, which may use idle "
          "memory that is guaranteed to other tenants, or ask an operator for a guarantee "
          "(gpumemctl quota set --guarantee)"};
}

// Returns the sentence for memory or segments that earlier requests wait for. `used` includes what
// they ask for. The limit with the queue says whether the numbers are bytes or counts; an older
// daemon does not name it.
Sentence Queue(const v1::Denial& d, absl::string_view who) {
  constexpr absl::string_view kWait =
      "wait, too (AcquireOptions::wait; gpumemctl hold --wait), or use ";
  const bool daemons = d.queued_at() == v1::Denial::CAUSE_DAEMON_LIMIT;
  if (daemons || d.queued_at() == v1::Denial::CAUSE_MAX_SEGMENTS) {
    return {absl::StrCat(who, " asked for ", Count(d.asked(), "segment"),
                         "; with the requests ahead of it in the queue ",
                         daemons ? "all tenants have " : absl::StrCat(Limited(d), " has "),
                         d.used(), " of at most ", d.limit()),
            absl::StrCat(kWait, "fewer and larger segments")};
  }
  const bool bytes = !d.device_uuid().empty() || d.queued_at() != v1::Denial::CAUSE_UNSPECIFIED;
  return {absl::StrCat(bytes ? AskedBytes(d, who) : absl::StrCat(who, " asked for memory"),
                       "; requests ahead of it in the queue wait for the free memory"),
          absl::StrCat(kWait, "another device")};
}

Sentence Tell(const v1::Denial& d) {
  const std::string who = d.tenant().empty() ? "this process" : absl::StrCat("tenant ", d.tenant());
  switch (d.cause()) {
    case v1::Denial::CAUSE_DEVICE_LIMIT:
      return ByteLimit(d, who, "there");
    case v1::Denial::CAUSE_TOTAL_LIMIT:
      return ByteLimit(d, who, "over all devices");
    case v1::Denial::CAUSE_CAPACITY:
      return Capacity(d, who);
    case v1::Denial::CAUSE_DRIVER:
      return {absl::StrCat(AskedBytes(d, who), "; the driver has too little free memory there"),
              "end programs that use the device without gpumemd (nvidia-smi shows them), or use "
              "another device"};
    case v1::Denial::CAUSE_UNBROKERED:
      return {
          absl::StrCat(who, " asked for ", FormatBytes(d.asked()), "; its processes use ",
                       FormatBytes(d.used()), OnDevice(d), " that they allocated without gpumemd"),
          "free that memory first, or end the processes (gpumemctl ps shows them)"};
    case v1::Denial::CAUSE_MAX_SEGMENTS:
      return CountLimit(d, who, "segment", "use fewer and larger segments");
    case v1::Denial::CAUSE_MAX_PUBLICATIONS:
      return CountLimit(d, who, "publication",
                        "unpublish those that are not needed (gpumemctl publications lists them)");
    case v1::Denial::CAUSE_MAX_SESSIONS:
      return CountLimit(d, who, "session",
                        "close sessions that are not needed (gpumemctl ps lists them)");
    case v1::Denial::CAUSE_MAX_IN_FLIGHT:
      return CallLimit(d, who, absl::StrCat(Count(d.used(), "call"), " in flight"),
                       "wait for an answer before the next call, or make fewer calls at once");
    case v1::Denial::CAUSE_MAX_WAITING:
      return CallLimit(
          d, who, Count(d.used(), "waiting request"),
          absl::StrCat("ask again when one of them has been answered, or ", AskForHigher(d)));
    case v1::Denial::CAUSE_GUARANTEES:
      return Guarantees(d, who);
    case v1::Denial::CAUSE_QUEUE:
      return Queue(d, who);
    case v1::Denial::CAUSE_DAEMON_LIMIT:  // of a session, a user, a tenant or the daemon: see help
      return {absl::StrCat(who, " asked for ", d.asked(), " more; ", d.used(), " of the ",
                           d.limit(), " that the daemon allows are in use"),
              "release those that are not needed, or try again later"};
    default:
      return {absl::StrCat("the request of ", who, " was denied"),
              "ask for less, or try again later"};
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

void MarkTryAgain(absl::Status* status) { status->SetPayload(kTryAgainUrl, absl::Cord()); }

bool IsTryAgain(const absl::Status& status) { return status.GetPayload(kTryAgainUrl).has_value(); }

}  // namespace gpumem
