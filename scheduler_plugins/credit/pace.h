// pace.h - no faster than the link: when the next task may be handed over, so that what comes later can overtake it.
//
//     Pace pace;
//     pace.Arrived(task);                              // in the order of arrival
//     if (pace.OpensAt() <= now) pace.Started(now, task.bytes, task.tensor);
//     pace.Home(now, task.bytes, something_waits);     // its result is here
//     pace.Lost(now, task.bytes);                      // it ended without one
//     pace.Agreed(rate);                               // of all workers the least of what they say of pace.rate()
//
// All paths of a worker share its link. Where "sent" means that the kernel has the bytes (TCP), or where each of many
// paths holds what its own delay asks for, tens of milliseconds of the link are handed over at once, and a gradient
// that is needed first waits behind them; and each worker has handed over something else, so that nothing is complete
// anywhere. With a pace a task counts as on its way until the link can have carried it, whatever has been said of it: a
// clock of the link, which needs no word of the transport.
//
// The rate is learned from the results: in windows of kWindow large tasks through which something always waited, the
// fastest window counts, where two rounds at least have had such: one alone may be slow itself, as the first steps of a
// trainer are, and no other may follow for long. A faster one is believed at once. Each worker tells what
// it has learned with what it pushes, and the least of it comes back with the results, to all the same: that is what
// all go by, since clocks that differ by half a percent drift apart by several partitions in a step. A result comes
// when every worker has pushed, so the slowest worker's pace is that of all, and a worker alone cannot find out
// whether all of them could be faster. That is why all let it go in the same rounds, about which they agree without a
// word: they hand in the same tensors, whose rounds are counted alike everywhere (bps_task.round), and go by those of
// the first. A library that tells neither rounds nor rates has no pace.
//
//     LEARN   nothing is held back: kLearnRounds at first, kProbeRounds from the rounds kFirstProbe and 2 kFirstProbe
//             on, and later from one in kProbeEvery; and until all have heard of a rate
//     HOLD    a little less than the rate
//
// A little less keeps the kernel's queue short, and the workers at the same parts, while gradients interrupt one
// another. Of a large tensor that nothing interrupts all workers are at the same part anyway, and the link would stand
// still for what the pace leaves free. So behind its first kLongRun bytes in a row it goes a little faster than the
// rate (kLongGain), until it is kMostLead ahead of the link, tensors before it included: what comes then waits for that
// much more at most. What goes slower than the rate makes up for it.
//
// Nothing is held back where it would be worth nothing: while no task has been more urgent than one before it, and on
// links faster than kFastest, where what is handed over leaves within a timer's precision. A pace that is too fast
// costs nothing; one that is too slow costs time, so a probe that measured a little less changes nothing, and where all
// that was handed over is home nothing waits, whatever the clock says.
//
// Threads: none; a pure function of the calls. Units: bytes and nanoseconds.
#ifndef BYTEPS_SCHEDULER_PLUGINS_CREDIT_PACE_H_
#define BYTEPS_SCHEDULER_PLUGINS_CREDIT_PACE_H_

#include <cstdint>

#include "abi/scheduler.h"

namespace byteps::credit {

class Pace {
 public:
  enum class State { kLearn, kHold };

  static constexpr double kGain = 0.97;
  static constexpr double kLongGain = 1.03;
  static constexpr uint64_t kLongRun = 1'000'000;   // bytes
  static constexpr int64_t kMostLead = 10'000'000;  // ns
  static constexpr double kFastest = 250e6;         // bytes per second
  static constexpr uint64_t kWindow = 192;
  static constexpr uint64_t kLearnRounds = 4;
  static constexpr uint64_t kFirstProbe = 16;
  static constexpr uint64_t kProbeRounds = 2;  // one that was disturbed does not count for all until the next probe
  static constexpr uint64_t kProbeEvery = 64;
  static constexpr uint64_t kUrgentRounds = 4;    // something urgent is remembered so long
  static constexpr uint64_t kLeaderTasks = 4096;  // without the tensor that counts: another one counts
  static constexpr int64_t kTimer = 2'000'000;    // timers may come so late without a gap

  // A task joined the queue.
  void Arrived(const bps_task& task, bool others_wait);
  // A task of this tensor was answered.
  void Started(int64_t now, uint64_t bytes, uint64_t tensor);
  // A result is home. `waits`: there were tasks to go all the time since the last one.
  void Home(int64_t now, uint64_t bytes, bool waits);
  // It ended without a result.
  void Lost(int64_t now, uint64_t bytes);
  // The least rate that any worker has told. All of them hear the same.
  void Agreed(uint64_t rate) { agreed_ = static_cast<double>(rate); }
  // Others are there: what is known of the link says nothing any more. What is away stays so.
  void Forget();

  // The next task may go from then on; INT64_MIN: at once.
  int64_t OpensAt() const;

  // Is this a round of learning?
  bool learns() const { return learning_; }
  State state() const { return learning_ || agreed_ == 0 ? State::kLearn : State::kHold; }
  // Bytes per second, as learned here; 0: not known.
  double rate() const { return rate_; }
  // Of all workers; 0: not known.
  double pace() const;

 private:
  // The tensor that counts begins this round of its own.
  void NextRound(uint32_t number);
  // Is anything held back now?
  bool InForce() const;

  bool learning_ = true;  // in this round
  double rate_ = 0;
  double agreed_ = 0;

  // The count of rounds.
  uint64_t leader_ = 0;
  uint32_t leader_round_ = 0;  // 0: there is no leader
  uint64_t since_leader_ = 0;
  uint64_t round_ = 0;         // how many there have been since it led first
  uint64_t urgent_until_ = 0;  // round
  int64_t last_priority_ = 0;

  // The window, and the fastest of this time of learning.
  int64_t window_begin_ = -1;
  uint64_t window_bytes_ = 0;
  double fastest_ = 0;
  uint64_t measured_ = 0;  // rounds that have had one
  bool measures_ = false;  // this round is such

  // How much of a tensor has gone without another's tasks between.
  uint64_t run_tensor_ = 0;
  uint64_t run_bytes_ = 0;
  int64_t lead_ = 0;  // how far what has gone is ahead of a link of the rate

  uint64_t largest_ = 0;    // task of late
  int64_t busy_until_ = 0;  // the link, with what was handed over since the pace is in force
  uint64_t away_ = 0;       // bytes handed over whose result is not here
};

const char* PaceStateName(Pace::State state);

}  // namespace byteps::credit

#endif  // BYTEPS_SCHEDULER_PLUGINS_CREDIT_PACE_H_
