#include "tools/info/json.h"

#include "gtest/gtest.h"

namespace byteps {
namespace {

TEST(JsonTest, TextsAreQuoted) {
  EXPECT_EQ(JsonString(""), R"("")");
  EXPECT_EQ(JsonString("a \"b\" \\ c/"), R"("a \"b\" \\ c/")");
  EXPECT_EQ(JsonString("one\ntwo\t\x01\x7f"), "\"one\\u000atwo\\u0009\\u0001\x7f\"");
  EXPECT_EQ(JsonString(std::string_view("a\0b", 3)), R"("a\u0000b")");
}

TEST(JsonTest, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(JsonString("\u00e9 \u20ac \U0001f600"), "\"\u00e9 \u20ac \U0001f600\"");
  EXPECT_EQ(JsonString("\xff"), R"("\ufffd")");
  EXPECT_EQ(JsonString("a\xc3"), R"("a\ufffd")");                             // ends in the middle
  EXPECT_EQ(JsonString("\xc3(b"), R"("\ufffd(b")");                           // something else follows
  EXPECT_EQ(JsonString("\x80x"), R"("\ufffdx")");                             // begins in the middle
  EXPECT_EQ(JsonString("\xc0\xaf"), R"("\ufffd\ufffd")");                     // a longer way to write '/'
  EXPECT_EQ(JsonString("\xe0\x80\xaf"), R"("\ufffd\ufffd\ufffd")");           // and another
  EXPECT_EQ(JsonString("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")");           // half of a pair
  EXPECT_EQ(JsonString("\xf4\x90\x80\x80").find("\xf4"), std::string::npos);  // beyond the last one
}

TEST(JsonTest, PartsAreJoined) {
  EXPECT_EQ(JsonObject({}), "{}");
  EXPECT_EQ(JsonArray({}), "[]");
  EXPECT_EQ(JsonObject({{"name", JsonString("x")}, {"is", JsonBool(true)}, {"why", JsonStringOrNull("")}}),
            R"({"name": "x", "is": true, "why": null})");
  EXPECT_EQ(JsonStrings({"a", "b"}), R"(["a", "b"])");
}

}  // namespace
}  // namespace byteps
