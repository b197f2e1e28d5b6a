// log.h - where the library's log lines go: an object that is passed around, never a global.
//
//     Logger log(LogOptions{.level = LogLevel::kInfo});           // to stderr
//     BPS_LOG(log, kWarning) << "peer " << peer << " is silent";  // arguments are evaluated only if the line is wanted
//     BPS_VERBOSE(log, 1) << "connected to " << address;          // PS_VERBOSE=1: whatever the level
//     Logger mine = log.WithPrefix("rank 3: ");                   // the same sink
//
// Each line is one call of the sink (see bps_log_fn of byteps.h), and the default sink writes it to stderr with one
// write, so that lines of several threads and processes do not mix:
//
//     [2026-11-21 10:04:31.123456 W core/worker/engine/engine.cc:88] rank 3: peer 7 is silent
//
// the time being the host's, left out with BYTEPS_LOG_HIDE_TIME=1.
//
// Threads:   every function may be called on any thread; the sink is called by one thread at a time.
// Ownership: copies and WithPrefix share the sink's state, which lives as long as the last of them. The sink's `user`
//            must live as long.
// Errors:    none; a sink that throws is a defect of the host, and its exception is dropped.
#ifndef BYTEPS_CORE_BASE_LOG_H_
#define BYTEPS_CORE_BASE_LOG_H_

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "abi/byteps.h"

namespace byteps {

enum class LogLevel : int32_t {
  kTrace = BPS_LOG_TRACE,
  kDebug = BPS_LOG_DEBUG,
  kInfo = BPS_LOG_INFO,
  kWarning = BPS_LOG_WARNING,
  kError = BPS_LOG_ERROR,
  kFatal = BPS_LOG_ERROR + 1,  // as a least level: nothing is logged; no line has it
};

// "trace" ... "fatal".
const char* LogLevelName(LogLevel level);

struct LogOptions {
  LogLevel level = LogLevel::kWarning;  // least level that reaches the sink
  int verbose = 0;                      // PS_VERBOSE: 1 connections, 2 every message
  bool hide_time = false;               // of the default sink
  bps_log_fn sink = nullptr;            // nullptr: stderr
  void* user = nullptr;
};

class Logger {
 public:
  explicit Logger(const LogOptions& options = {});

  // A logger on the same sink that puts `prefix` before every message, after the prefix of this one.
  Logger WithPrefix(std::string_view prefix) const;

  bool Enabled(LogLevel level) const { return level >= level_; }
  bool Verbose(int verbosity) const { return verbose_ >= verbosity; }
  LogLevel level() const { return level_; }
  const std::string& prefix() const { return prefix_; }

  // Logs one line whatever the level; BPS_LOG asks Enabled first.
  void Write(LogLevel level, const char* file, int line, std::string_view message) const noexcept;

 private:
  struct Shared;

  std::shared_ptr<Shared> shared_;
  std::string prefix_;
  LogLevel level_;
  int verbose_;
};

// One line being put together; written when it goes out of scope. Made by the macros.
class LogLine {
 public:
  LogLine(const Logger& logger, LogLevel level, const char* file, int line)
      : logger_(logger), level_(level), file_(file), line_(line) {}
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  ~LogLine() { logger_.Write(level_, file_, line_, text_.str()); }

  std::ostream& stream() { return text_; }

 private:
  const Logger& logger_;
  const LogLevel level_;
  const char* const file_;
  const int line_;
  std::ostringstream text_;
};

// The `else` belongs to this `if`, so that the macros can stand in an unbraced `if` of their user.
#define BPS_LOG(logger, severity)                                                                         \
  if (const ::byteps::Logger& bps_logger = (logger); !bps_logger.Enabled(::byteps::LogLevel::severity)) { \
  } else                                                                                                  \
    ::byteps::LogLine(bps_logger, ::byteps::LogLevel::severity, __FILE__, __LINE__).stream()

#define BPS_VERBOSE(logger, verbosity)                                                 \
  if (const ::byteps::Logger& bps_logger = (logger); !bps_logger.Verbose(verbosity)) { \
  } else                                                                               \
    ::byteps::LogLine(bps_logger, ::byteps::LogLevel::kInfo, __FILE__, __LINE__).stream()

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_LOG_H_
