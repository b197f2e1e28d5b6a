#include "core/worker/session/commands.h"

namespace byteps {

bool Commands::Run(Time now, Engine* engine) {
  // Those that an exception has left behind come first.
  if (running_.empty()) queue_.TakeAll(&running_);
  if (running_.empty()) return false;
  while (next_ < running_.size()) {
    Command& command = running_[next_++];
    if (command.collective != nullptr) {
      collect_(now, *std::move(command.collective));
    } else if (command.join != nullptr) {
      engine->collectives()->joins().Submit(now, *std::move(command.join));
    } else if (command.cancel != nullptr) {
      engine->Cancel(now, command.cancel.get(), command.cause);
    } else if (command.submission.tensor == nullptr) {
      engine->DropFreedBuffers();
    } else {
      if (collapser_ != nullptr && command.submission.gpu == nullptr) UseHugePages(command.submission);
      submit_(now, std::move(command.submission));
    }
  }
  running_.clear();
  next_ = 0;
  return true;
}

void Commands::UseHugePages(const Submission& asked) {
  // What others map they need not pin: it is as fast on small pages, and the move onto huge ones takes a second.
  const auto mapped = [](const std::shared_ptr<Buffer>& buffer) { return buffer != nullptr && buffer->fd() >= 0; };
  if (asked.input != nullptr && !mapped(asked.request->input_buffer())) {
    asked.tensor->input_pages.Use(asked.input, asked.tensor->bytes(), collapser_);
  }
  if (asked.output != asked.input && !mapped(asked.request->output_buffer())) {
    asked.tensor->output_pages.Use(asked.output, asked.tensor->bytes(), collapser_);
  }
}

}  // namespace byteps
