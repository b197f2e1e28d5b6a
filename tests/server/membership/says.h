// says.h - does a text, mostly an error, have these words in it?
//
//     EXPECT_TRUE(Says(member.failure_text(), {"rank 1", "BYTEPS_JOB_TOKEN"}));
#ifndef BYTEPS_TESTS_SERVER_MEMBERSHIP_SAYS_H_
#define BYTEPS_TESTS_SERVER_MEMBERSHIP_SAYS_H_

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace byteps {

inline ::testing::AssertionResult Says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
    }
  }
  return ::testing::AssertionSuccess();
}

// The same of a list of lines.
inline ::testing::AssertionResult Says(const std::vector<std::string>& lines, const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& line : lines) text += line + "; ";
  return Says(text, parts);
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_MEMBERSHIP_SAYS_H_
