#include "common/denial.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumem {
namespace {

constexpr char kDenialUrl[] = "type.googleapis.com/gpumem.v1.Denial";

// A refusal as people say it: what happened, and what would help.
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

// How many of what is used have to go for the request to fit.
uint64_t Missing(const v1::Denial& d) {
  const uint64_t room = d.limit() > d.used() ? d.limit() - d.used() : 0;
  return d.asked() > room ? d.asked() - room : 0;
}

// What helps against a limit in bytes, `where` being "there" or "over all devices".
Sentence ByteLimit(const v1::Denial& d, absl::string_view who, absl::string_view where) {
  constexpr absl::string_view kHigher = "ask for a higher limit (gpumemctl quota set)";
  if (d.asked() > d.limit()) {
    return {absl::StrCat(AskedBytes(d, who), "; its limit ", where, " is ", FormatBytes(d.limit())),
            absl::StrCat("ask for less, or ", kHigher)};
  }
  return {absl::StrCat(AskedBytes(d, who), "; it holds ", FormatBytes(d.used()), " of its ",
                       FormatBytes(d.limit()), " limit ", where),
          absl::StrCat("release ", FormatBytes(Missing(d)), " or ", kHigher)};
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
                           FormatBytes(d.limit()), " are taken"),
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
      return {absl::StrCat(who, " asked for ", Count(d.asked(), "segment"), "; it has ", d.used(),
                           " of the ", d.limit(), " that it may have"),
              "release some, ask for fewer and larger ones, or ask for a higher limit (gpumemctl "
              "quota set)"};
    case v1::Denial::CAUSE_MAX_SESSIONS:
      return {absl::StrCat(who, " asked for ", Count(d.asked(), "session"), "; it has ", d.used(),
                           " of the ", d.limit(), " that it may have"),
              "end some of its processes (gpumemctl ps lists them) or ask for a higher limit "
              "(gpumemctl quota set)"};
    case v1::Denial::CAUSE_MAX_IN_FLIGHT:
      return {absl::StrCat(who, " has ", Count(d.used(), "call"), " waiting for an answer, of the ",
                           d.limit(), " that it may have"),
              "call again when one has been answered, or make fewer calls at a time"};
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
