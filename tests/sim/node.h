// node.h - one process of a simulated job: a step function that runs when something woke it, a little later.
//
//     class Worker : public Node { bool Step(Time now) override; Time NextTimer() const override; ... };
//     options.wake = [&] { worker.Wake(); };     // of its endpoints
//
// How much later is drawn from the seed (up to `slowness`): that is the scheduling of threads on a busy host. A node
// that is dead (SimFabric::Kill) does not run any more.
#ifndef BYTEPS_TESTS_SIM_NODE_H_
#define BYTEPS_TESTS_SIM_NODE_H_

#include <functional>
#include <string>

#include "core/base/time.h"
#include "tests/sim/job_options.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

class Node {
 public:
  // `start` runs when the process starts.
  Node(sim::SimFabric* fabric, std::string name, const JobOptions& options, std::function<void()> start);
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& name() const { return name_; }
  bool alive() const { return fabric_->Alive(name_); }
  // Runs soon.
  void Wake();
  Time now() const { return fabric_->now(); }

 protected:
  // One round of progress; true if anything happened.
  virtual bool Step(Time now) = 0;
  // When Step must be called although nothing woke us; kNever: not by time alone.
  virtual Time NextTimer() const = 0;

  sim::SimFabric* fabric() const { return fabric_; }

 private:
  void Run();

  sim::SimFabric* const fabric_;
  const std::string name_;
  const Time slowness_;
  bool awake_ = false;
  Time timer_ = kNever;  // the earliest that is set
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_NODE_H_
