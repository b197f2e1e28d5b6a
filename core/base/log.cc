#include "core/base/log.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>

namespace byteps {
namespace {

constexpr const char* kNames[] = {"trace", "debug", "info", "warning", "error", "fatal"};
constexpr char kLetters[] = "TDIWEF";

int32_t Clamp(LogLevel level) {
  return std::clamp(static_cast<int32_t>(level), static_cast<int32_t>(LogLevel::kTrace),
                    static_cast<int32_t>(LogLevel::kFatal));
}

std::string TimeNow() {
  struct timeval now;
  gettimeofday(&now, nullptr);
  struct tm parts;
  localtime_r(&now.tv_sec, &parts);
  char seconds[32];
  const size_t size = strftime(seconds, sizeof(seconds), "%Y-%m-%d %H:%M:%S", &parts);
  char micros[16];
  std::snprintf(micros, sizeof(micros), ".%06ld ", static_cast<long>(now.tv_usec));
  return std::string(seconds, size) + micros;
}

void WriteToStderr(bool hide_time, LogLevel level, const char* file, int line, const std::string& message) {
  std::string text = "[";
  if (!hide_time) text += TimeNow();
  text += kLetters[Clamp(level)];
  text.append(" ").append(file).append(":").append(std::to_string(line)).append("] ").append(message).append("\n");
  // One write per line. A stderr that takes no more (closed, full disk) cannot be reported anywhere.
  const char* rest = text.data();
  size_t left = text.size();
  while (left > 0) {
    const ssize_t written = ::write(STDERR_FILENO, rest, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest += written;
    left -= static_cast<size_t>(written);
  }
}

}  // namespace

const char* LogLevelName(LogLevel level) { return kNames[Clamp(level)]; }

struct Logger::Shared {
  std::mutex mutex;  // one call of the sink at a time
  const bps_log_fn sink;
  void* const user;
  const bool hide_time;
};

Logger::Logger(const LogOptions& options)
    : shared_(new Shared{{}, options.sink, options.user, options.hide_time}),
      level_(options.level),
      // The level debug shows connections, too.
      verbose_(options.level <= LogLevel::kDebug ? std::max(options.verbose, 1) : options.verbose) {}

Logger Logger::WithPrefix(std::string_view prefix) const {
  Logger logger(*this);
  logger.prefix_.append(prefix);
  return logger;
}

void Logger::Write(LogLevel level, const char* file, int line, std::string_view message) const noexcept {
  try {
    std::string text = prefix_;
    text.append(message);
    // A message of several lines stays one line of the log.
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (shared_->sink != nullptr) {
      shared_->sink(shared_->user, Clamp(level), file, line, text.c_str());
    } else {
      WriteToStderr(shared_->hide_time, level, file, line, text);
    }
  } catch (...) {
    // No memory for a log line, or a sink that throws: the program goes on.
  }
}

}  // namespace byteps
