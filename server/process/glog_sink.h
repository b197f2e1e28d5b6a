// glog_sink.h - glog as the place where a server's or coordinator's log lines go.
//
//     LogOptions options = config.GetLogOptions();
//     UseGlog(argv[0], &options);
//     Logger log(options);
//
// Libraries never see glog: they are given a Logger. Which lines are wanted is the Logger's affair; glog writes those
// it gets to stderr, each with its severity, the time (unless BYTEPS_LOG_HIDE_TIME) and the place in the source.
//
// Threads: call UseGlog once, in main.
#ifndef BYTEPS_SERVER_PROCESS_GLOG_SINK_H_
#define BYTEPS_SERVER_PROCESS_GLOG_SINK_H_

#include "core/base/log.h"

namespace byteps {

void UseGlog(const char* program, LogOptions* options);

}  // namespace byteps

#endif  // BYTEPS_SERVER_PROCESS_GLOG_SINK_H_
