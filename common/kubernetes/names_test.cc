// SPDX-License-Identifier: Apache-2.0
#include "common/kubernetes/names.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace gpumem {
namespace kubernetes_names_test {

TEST(KubernetesNamesTest, Namespaces) {
  for (const std::string& name :
       {std::string("a"), std::string("team-a"), std::string("9"), std::string(63, 'a')}) {
    EXPECT_TRUE(IsDnsLabel(name)) << name;
    EXPECT_TRUE(IsDnsSubdomain(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("-a"), std::string("a-"), std::string("Team"),
        std::string("a_b"), std::string("a b"), std::string("a/b"), std::string("a\n"),
        std::string("\xc3\xa4")}) {
    EXPECT_FALSE(IsDnsLabel(name)) << name;
    EXPECT_FALSE(IsDnsSubdomain(name)) << name;
  }
  EXPECT_FALSE(IsDnsLabel("a.b")) << "a tenant's name may have NAMESPACE.VALUE";
  EXPECT_FALSE(IsDnsLabel(std::string(64, 'a')));
  EXPECT_TRUE(IsDnsSubdomain("a.b-c.9"));
  EXPECT_TRUE(IsDnsSubdomain(std::string(253, 'a')));
  EXPECT_FALSE(IsDnsSubdomain(std::string(254, 'a')));
  EXPECT_FALSE(IsDnsSubdomain("a..b"));
  EXPECT_FALSE(IsDnsSubdomain("../b"));
}

TEST(KubernetesNamesTest, Labels) {
  for (const std::string& key :
       {std::string("a"), std::string("A.b_c-9"), std::string("example.com/Tier"),
        absl::StrCat(std::string(63, 'a'), "/", std::string(63, 'b'))}) {
    EXPECT_TRUE(IsLabelKey(key)) << key;
  }
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("A/b"),
        std::string("a..b/c"), std::string("-a"), std::string("a-"), std::string("a*"),
        std::string("a/b/c"), std::string(64, 'a'), absl::StrCat(std::string(254, 'a'), "/b")}) {
    EXPECT_FALSE(IsLabelKey(key)) << key;
  }
  EXPECT_TRUE(IsLabelValue(""));
  EXPECT_TRUE(IsLabelValue(std::string(63, 'a')));
  EXPECT_FALSE(IsLabelValue(std::string(64, 'a')));
  EXPECT_FALSE(IsLabelValue("a/b"));
}

TEST(KubernetesNamesTest, UidsOfPods) {
  EXPECT_TRUE(IsPodUid("099b88fb-2a99-45ad-af94-d91eb81a87e9"));
  EXPECT_TRUE(IsPodUid("099b88fb2a9945adaf94d91eb81a87e9"));
  for (const char* uid :
       {"", "099b88fb-2a99-45ad-af94-d91eb81a87e", "099B88FB-2a99-45ad-af94-d91eb81a87e9",
        "099b88fb-2a99-45ad-af94_d91eb81a87e9", "099b88fb2a99-45ad-af94-d91eb81a87e9a",
        "../../../../../../../../../../../etc", "099b88fb2a9945adaf94d91eb81a87eg"}) {
    EXPECT_FALSE(IsPodUid(uid)) << uid;
  }
}

}  // namespace kubernetes_names_test
}  // namespace gpumem
