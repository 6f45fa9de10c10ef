// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/web/server/bundle.h"

namespace gpumem::web {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

TEST(RoutesTest, Paths) {
  EXPECT_EQ(RouteOf("/"), Route::kFile);
  EXPECT_EQ(RouteOf("/?x=/app.js"), Route::kFile);
  EXPECT_EQ(RouteOf("/app.js"), Route::kFile);
  EXPECT_EQ(RouteOf("/api/v1/snapshot?"), Route::kSnapshot);
  EXPECT_EQ(RouteOf("/api/v1/links"), Route::kLinks);
  for (const absl::string_view target :
       {absl::string_view("/index.html"), absl::string_view("/api/v1/"),
        absl::string_view("/api/v1/snapshot/"), absl::string_view("/app.js/"),
        absl::string_view("//app.js"), absl::string_view("/./app.js"),
        absl::string_view("/../app.js"), absl::string_view("/%2e%2e/etc/passwd"),
        absl::string_view("/..%2fapp.js"), absl::string_view("/APP.JS"),
        absl::string_view("/app.js\0", 8), absl::string_view("/app%2ejs"),
        absl::string_view("/app.js%00"), absl::string_view("http://localhost/app.js"),
        absl::string_view("*"), absl::string_view(""), absl::string_view("/app.js#x"),
        absl::string_view("/.git/config"), absl::string_view("/app.js;x")}) {
    EXPECT_EQ(RouteOf(target), Route::kNone) << target;
  }
}

TEST(RoutesTest, HistoryQueries) {
  const auto query = ParseHistoryQuery("/api/v1/history?device=GPU-1&tenant=a%2Fb&tenant=c+d");
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_EQ(query->device, "GPU-1");
  EXPECT_THAT(query->tenants, ElementsAre("a/b", "c d"));
  EXPECT_TRUE(ParseHistoryQuery("/api/v1/history")->tenants.empty());
  EXPECT_TRUE(ParseHistoryQuery("/api/v1/history?&&")->tenants.empty());
  std::string most = "/api/v1/history?device=x";
  for (size_t i = 0; i < HistoryQuery::kMostTenants; ++i) absl::StrAppend(&most, "&tenant=t", i);
  EXPECT_EQ(ParseHistoryQuery(most)->tenants.size(), 16U);
  for (const std::string& wrong :
       {absl::StrCat(most, "&tenant=x"), std::string("/?device=a&device=b"), std::string("/?x=1"),
        std::string("/?tenant=%"), std::string("/?tenant=%4"), std::string("/?tenant=%zz"),
        std::string("/?tenant=%ff"), std::string("/?tenant=%c3%28")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHistoryQuery(wrong).status())) << wrong;
  }
}

TEST(BundleTest, Files) {
  for (const char* path : {"/", "/app.js", "/app.css", "/icon.svg"}) {
    const File* const file = FindFile(path);
    ASSERT_NE(file, nullptr) << path;
    EXPECT_FALSE(file->plain.empty());
    EXPECT_THAT(std::string(file->gzip), StartsWith("\x1f\x8b"));
    EXPECT_THAT(std::string(file->etag), StartsWith("W/\""));
  }
  EXPECT_EQ(FindFile("/")->type, "text/html; charset=utf-8");
  EXPECT_EQ(FindFile("/index.html"), nullptr);
  EXPECT_EQ(FindFile(""), nullptr);
}

}  // namespace
}  // namespace gpumem::web
