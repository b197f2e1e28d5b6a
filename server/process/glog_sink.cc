#include "server/process/glog_sink.h"

#include <glog/logging.h>

namespace byteps {
namespace {

void WriteToGlog(void*, int32_t level, const char* file, int32_t line, const char* message) {
  google::LogSeverity severity = google::GLOG_INFO;
  if (level == BPS_LOG_WARNING) severity = google::GLOG_WARNING;
  if (level >= BPS_LOG_ERROR) severity = google::GLOG_ERROR;
  google::LogMessage(file, line, severity).stream() << message;
}

}  // namespace

void UseGlog(const char* program, LogOptions* options) {
  FLAGS_logtostderr = true;
  FLAGS_log_prefix = !options->hide_time;
  google::InitGoogleLogging(program);
  options->sink = &WriteToGlog;
}

}  // namespace byteps
