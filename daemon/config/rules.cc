// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/rules.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <regex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/kubernetes/names.h"
#include "daemon/config/forms.h"

namespace gpumemd {
namespace {

constexpr char kConditions[] =
    "uid, user, gid, group, cgroup, unit, slice, container, pod, qos, slurm_job, slurm_step, "
    "namespace, pod_name, service_account, claim, \"label:KEY\"";
constexpr char kLabel[] = "label:";

bool HasPlaceholder(const std::string& tenant) {
  return !LabelsIn(tenant).empty() ||
         std::any_of(Placeholders().begin(), Placeholders().end(), [&](const Placeholder& known) {
           return absl::StrContains(tenant, known.text);
         });
}

void CheckTenant(TableReader* reader, const std::string& tenant, const Config& config) {
  std::set<std::string> configured;
  for (const TenantConfig& known : config.tenants) configured.insert(known.name);
  if (tenant.empty() || configured.contains(tenant) || HasPlaceholder(tenant)) return;
  std::string nearest = Nearest(tenant, configured);
  reader->Complain(
      *reader->Find("tenant"), "tenant",
      absl::StrCat("no [[tenant]] is named \"", tenant, "\" (",
                   nearest.empty() ? std::string("add one, or write a name for each user: "
                                                 "\"user-{uid}\"")
                                   : absl::StrCat("did you mean \"", nearest, "\"?"),
                   ")"));
}

// Returns the keys of labels that a rule's table has conditions on.
std::vector<std::string> LabelsOf(const toml::value& table) {
  std::vector<std::string> labels;
  for (const auto& [key, value] : table.as_table()) {
    if (absl::StartsWith(key, kLabel)) labels.push_back(key.substr(strlen(kLabel)));
  }
  std::sort(labels.begin(), labels.end());
  return labels;
}

// A placeholder needs a condition that makes sure of its value.
void CheckPlaceholders(TableReader* reader, const std::string& tenant,
                       const std::vector<std::string>& labels) {
  for (const std::string& key : LabelsIn(tenant)) {
    if (std::find(labels.begin(), labels.end(), key) != labels.end()) continue;
    reader->Complain(
        *reader->Find("tenant"), "tenant",
        absl::StrCat(LabelPlaceholder(key), " has a value only where the rule has the condition \"",
                     kLabel, key, "\" (expected one such as \"", kLabel, key, "\" = \"*\")"));
  }
  for (const Placeholder& known : Placeholders()) {
    if (!absl::StrContains(tenant, known.text) || known.conditions.empty()) continue;
    if (std::any_of(known.conditions.begin(), known.conditions.end(), [&](absl::string_view key) {
          return key == kAnyLabel ? !labels.empty() : reader->Find(std::string(key)) != nullptr;
        })) {
      continue;
    }
    const bool by_name = known.conditions.front() == "user" || known.conditions.front() == "group";
    reader->Complain(
        *reader->Find("tenant"), "tenant",
        absl::StrCat(known.text, " has a value only where the rule has the condition ",
                     absl::StrJoin(known.conditions, " or "), " (expected one such as ",
                     known.conditions.front(), by_name ? " = \"alice\")" : " = \"*\")"));
  }
}

// A pattern made of `characters` and those of patterns. Without the latter it has one of these
// lengths, if any are given: another would never match. Only a pattern of any length may be a
// plain number.
Form<std::string> PatternForm(const std::string& noun, const std::string& expected,
                              const std::string& characters, std::set<size_t> lengths) {
  return {noun, expected, [=](const toml::value& value) -> std::optional<std::string> {
            if (lengths.empty() && value.is_integer() && value.as_integer() >= 0) {
              return absl::StrCat(value.as_integer());
            }
            if (!value.is_string() || value.as_string().str.empty()) return std::nullopt;
            const std::string& text = value.as_string().str;
            if (text.find_first_not_of(characters + "*?[]!-") != std::string::npos) {
              return std::nullopt;
            }
            const bool exact = text.find_first_of("*?[") == std::string::npos;
            if (exact && !lengths.empty() && !lengths.contains(text.size())) return std::nullopt;
            return text;
          }};
}

// A pattern of names that end in one of `endings`, or in '*'.
Form<std::string> NameForm(const std::string& noun, const std::string& expected,
                           std::vector<std::string> endings) {
  endings.emplace_back("*");
  return {noun, expected,
          [endings = std::move(endings)](const toml::value& value) -> std::optional<std::string> {
            if (!value.is_string()) return std::nullopt;
            const std::string& text = value.as_string().str;
            for (const std::string& ending : endings) {
              if (absl::EndsWith(text, ending)) return text;
            }
            return std::nullopt;
          }};
}

// Returns the syntax of conditions on facts of the cgroup.
std::vector<std::pair<CgroupFact, Form<std::string>>> FactForms() {
  const std::string digits = "0123456789";
  return {
      {CgroupFact::kUnit,
       NameForm("a unit of systemd", "a pattern such as \"infer@*.service\" or \"session-*.scope\"",
                {".service", ".scope"})},
      {CgroupFact::kSlice,
       NameForm("a slice of systemd", "a pattern such as \"machine.slice\"", {".slice"})},
      {CgroupFact::kContainer,
       PatternForm("a container's id",
                   "64 hexadecimal digits in lower case, or a pattern such as \"3f2a*\"",
                   digits + "abcdef", {64})},
      {CgroupFact::kPod,
       PatternForm("a pod's uid",
                   "hexadecimal digits in lower case with '-', or a pattern such as \"*\"",
                   digits + "abcdef", {32, 36})},
      {CgroupFact::kQos, OneOfForm<std::string>({{"guaranteed", "guaranteed"},
                                                 {"burstable", "burstable"},
                                                 {"besteffort", "besteffort"},
                                                 {"*", "*"}})},
      {CgroupFact::kSlurmJob,
       PatternForm("a job of Slurm", "its number, or a pattern such as \"*\"", digits, {})},
      {CgroupFact::kSlurmStep,
       PatternForm("a step of a Slurm job", "its number, \"batch\", or a pattern such as \"*\"",
                   digits + "abcdefghijklmnopqrstuvwxyz._+", {})},
  };
}

// Returns the syntax of conditions on facts of the pod, without labels.
std::vector<std::pair<PodFact, Form<std::string>>> PodForms() {
  const std::string lower = "0123456789abcdefghijklmnopqrstuvwxyz";
  const auto form = [&](const std::string& noun, const std::string& example) {
    return PatternForm(noun, absl::StrCat("a pattern such as \"", example, "\""), lower + ".", {});
  };
  return {
      {PodFact::kNamespace, form("a namespace of Kubernetes", "team-*")},
      {PodFact::kName, form("the name of a pod", "trainer-*")},
      {PodFact::kServiceAccount, form("a service account of Kubernetes", "runner")},
      {PodFact::kClaim, form("the name of a ResourceClaim", "shared-*")},
  };
}

Form<std::string> LabelForm() {
  return PatternForm("a label's value", "a pattern such as \"prod\" or \"*\"",
                     "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._", {});
}

}  // namespace

void ReadRule(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
              Config* config) {
  TableReader reader(table, "rule", mistakes);
  Rule rule;
  reader.Require("tenant", TenantOrTemplateForm(), &rule.tenant);
  reader.Read("made", BoolForm(), &rule.made);
  if (!rule.made) CheckTenant(&reader, rule.tenant, *config);
  const std::vector<std::string> labels = LabelsOf(table);
  CheckPlaceholders(&reader, rule.tenant, labels);

  bool conditional = false;  // even if the condition is malformed
  for (const char* key : {"uid", "user", "gid", "group", "cgroup"}) {
    conditional |= reader.Find(key) != nullptr;
  }
  std::vector<std::string> conditions;
  // A condition given by number or by name: "uid" or "user", "gid" or "group".
  auto read_id = [&](const std::string& id_key, const std::string& name_key, const auto& lookup,
                     auto* out, std::string* name) {
    reader.Read(id_key, CountForm(0, std::numeric_limits<uint32_t>::max() - 1), out);
    reader.Read(name_key, TextForm(), name);
    if (*out) conditions.push_back(absl::StrCat(id_key, " = ", **out));
    if (name->empty()) return;
    const toml::value& where = *reader.Find(name_key);
    conditions.push_back(absl::StrCat(name_key, " = ", *name));
    if (reader.Find(id_key) != nullptr) {
      reader.Complain(where, name_key,
                      absl::StrCat("a rule has ", id_key, " or ", name_key, ", not both"));
    } else if (!(*out = lookup(*name))) {
      reader.Complain(where, name_key,
                      absl::StrCat("this machine has no ", name_key, " \"", *name, "\""));
    }
  };
  read_id("uid", "user", names.user, &rule.uid, &rule.user);
  read_id("gid", "group", names.group, &rule.gid, &rule.group);
  reader.Read("cgroup", TextForm(), &rule.cgroup);
  if (rule.cgroup) conditions.push_back(absl::StrCat("cgroup = ", *rule.cgroup));
  for (const auto& [fact, form] : FactForms()) {
    const std::string key(NameOf(fact));
    conditional |= reader.Find(key) != nullptr;
    std::string pattern;
    reader.Read(key, form, &pattern);
    if (pattern.empty()) continue;
    conditions.push_back(absl::StrCat(key, " = ", pattern));
    rule.facts.push_back({fact, std::move(pattern)});
  }
  const auto read_pod_fact = [&](const std::string& key, const Form<std::string>& form,
                                 PodCondition condition) {
    conditional |= reader.Find(key) != nullptr;
    reader.Read(key, form, &condition.pattern);
    if (condition.pattern.empty()) return;
    conditions.push_back(absl::StrCat(key, " = ", condition.pattern));
    rule.pod_facts.push_back(std::move(condition));
  };
  for (const auto& [fact, form] : PodForms()) {
    read_pod_fact(std::string(NameOf(fact)), form, {.fact = fact});
  }
  for (const std::string& label : labels) {
    const std::string key = absl::StrCat(kLabel, label);
    if (!gpumem::IsLabelKey(label)) {
      reader.Complain(*reader.Find(key), key,
                      absl::StrCat("\"", label,
                                   "\" is not the key of a label (expected one such as "
                                   "\"label:app.kubernetes.io/name\")"));
    }
    read_pod_fact(key, LabelForm(), {.fact = PodFact::kLabel, .label = label});
  }

  if (rule.made) conditions.emplace_back("made");
  // Must be explicit, so that a forgotten condition does not open a tenant to all users.
  bool everybody = false;
  reader.Read("default", BoolForm(), &everybody);
  reader.Finish();
  if (everybody && conditional) {
    reader.Complain(*reader.Find("default"), "default",
                    "a rule with default = true has no other condition");
  } else if (!everybody && !conditional) {
    mistakes->Add(table, "rule",
                  absl::StrCat("no condition (expected ", kConditions,
                               ", or default = true for all processes)"));
  }
  if (everybody) conditions.emplace_back("default");
  rule.description =
      absl::StrCat("rule ", config->rules.size() + 1, " (", absl::StrJoin(conditions, ", "), ")");
  config->rules.push_back(std::move(rule));
}

Rule EverybodyRule() {
  return {.tenant = kTenantForEachUser, .description = "built-in rule (a tenant for each user)"};
}

bool CanBeNamed(const Config& config, absl::string_view tenant) {
  const auto can_name = [&](const std::string& pattern) {
    std::vector<std::pair<absl::string_view, absl::string_view>> values = {{".", "\\."}};
    for (const Placeholder& known : Placeholders()) {
      values.emplace_back(known.text, known.text == "{uid}" ? "[0-9]+" : "[A-Za-z0-9._-]+");
    }
    std::vector<std::string> labels = LabelsIn(pattern);
    for (std::string& key : labels) {
      key = LabelPlaceholder(key);
      values.emplace_back(key, "[A-Za-z0-9._-]+");
    }
    return std::regex_match(tenant.begin(), tenant.end(),
                            std::regex(absl::StrReplaceAll(pattern, values)));
  };
  return std::any_of(config.rules.begin(), config.rules.end(), [&](const Rule& rule) {
    // If a cgroup is ambiguous, users get the built-in rule's tenant.
    return can_name(rule.tenant) || (rule.AsksForCgroup() && can_name(kTenantForEachUser));
  });
}

}  // namespace gpumemd
