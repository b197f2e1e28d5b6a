// commands.h - what user threads hand over to the thread that drives the engine.
//
//     commands.Push({std::move(submission)});          // any thread
//     commands.Run(now, &engine);                      // with the engine
#ifndef BYTEPS_CORE_WORKER_SESSION_COMMANDS_H_
#define BYTEPS_CORE_WORKER_SESSION_COMMANDS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/submission_queue.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective.h"
#include "core/worker/engine/engine.h"
#include "core/worker/memory/page_collapser.h"
#include "core/worker/tensor/operation.h"
#include "core/worker/tensor/request.h"

namespace byteps {

struct Command {
  Submission submission;                             // with a tensor: to be submitted
  std::shared_ptr<Request> cancel;                   // else: to be given up; neither: buffers were freed
  std::unique_ptr<Collective> collective = nullptr;  // or this is to be submitted
  std::unique_ptr<JoinAsked> join = nullptr;         // or this
  absl::Status cause = {};                           // of cancel; OK: its caller
};

class Commands {
 public:
  // `collapser`: moves tensors onto huge pages; nullptr: not done. `submit`, `collect`: give an operation to the
  // engine.
  Commands(PageCollapser* collapser, std::function<void(Time, Submission)> submit,
           std::function<void(Time, Collective)> collect)
      : collapser_(collapser), submit_(std::move(submit)), collect_(std::move(collect)) {}

  void Push(Command command) { queue_.Push(std::move(command)); }
  // Nothing was pushed that Run has not taken. May be asked right before blocking.
  bool queue_empty() const { return queue_.empty(); }
  // Nor is anything left behind by an exception.
  bool empty() const { return queue_.empty() && running_.empty(); }
  // True if there was anything to do.
  bool Run(Time now, Engine* engine);

 private:
  void UseHugePages(const Submission& asked);

  PageCollapser* const collapser_;
  const std::function<void(Time, Submission)> submit_;
  const std::function<void(Time, Collective)> collect_;
  SubmissionQueue<Command> queue_;
  std::vector<Command> running_;  // from next_ on
  size_t next_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SESSION_COMMANDS_H_
