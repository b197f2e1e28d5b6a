// meeting.h - where the fake GPUs of several processes meet: memory that all of them map.
//
//     std::string id = Meeting::NewId();                       // one member; the others are told
//     Meeting meeting(id, rank, size);
//     if (meeting.AllHere()) ...
//     if (meeting.AmongProcesses()) ...                        // of those that are here
//     if (meeting.Post(bytes)) ...                             // unit 0, 1, ... of this member; false: no room now
//     const std::byte* theirs = meeting.Read(unit, member);    // nullptr: not posted yet
//     meeting.Done(unit);                                      // has read what all have posted in it
//     meeting.Fail(text);  meeting.failure()                   // for all members
//
// Nothing blocks. The memory is a file without a name, found through the process that made it, so nothing is left
// behind.
//
// Threads: one at a time in each process. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_MEETING_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_MEETING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace byteps::fake {

class Meeting {
 public:
  static constexpr int kMaxMembers = 16;
  static constexpr uint64_t kRoom = uint64_t{64} << 20;  // what a member may have posted, and others not read

  static std::string NewId();
  Meeting(const std::string& id, int rank, int size);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool AllHere() const;
  bool AmongProcesses() const;
  bool Post(std::span<const std::byte> bytes);
  const std::byte* Read(uint64_t unit, int member) const;
  void Done(uint64_t unit);
  // The first that is told stays.
  void Fail(const std::string& text);
  std::string failure() const;

 private:
  struct Shared;

  std::byte* Area(int member) const;

  const int rank_;
  const int size_;
  Shared* shared_ = nullptr;
  uint64_t posted_ = 0;  // units
  uint64_t cursor_ = 0;  // in the own area, never wrapped
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_MEETING_H_
