// refusal_notes.h - who was refused while a session gathers, for the members that wait.
//
//     RefusalNotes notes;
//     if (notes.Add("server 7 (...): DMLC_RANK=7 is not between -1 and 0")) announce    // a text that was not there
//     for (const std::string& text : notes.texts()) waiting.add_refused(text);
//     notes.Clear();                                                                    // a session has started
//
// A refused member may be the one that the others wait for. A stranger may be refused as well, again and again: the
// notes keep the newest kMost texts, each of at most kMaxBytes printable bytes, and the coordinator announces them at
// most once per kInterval.
//
// Threads: none.
#ifndef BYTEPS_SERVER_MEMBERSHIP_REFUSAL_NOTES_H_
#define BYTEPS_SERVER_MEMBERSHIP_REFUSAL_NOTES_H_

#include <cstddef>
#include <deque>
#include <string>

#include "core/base/time.h"

namespace byteps {

class RefusalNotes {
 public:
  static constexpr size_t kMost = 3;
  static constexpr size_t kMaxBytes = 512;
  static constexpr Time kInterval = kSecond;

  // False: this text is known already.
  bool Add(const std::string& text);
  void Clear() { texts_.clear(); }

  // Oldest first.
  const std::deque<std::string>& texts() const { return texts_; }

 private:
  std::deque<std::string> texts_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_REFUSAL_NOTES_H_
