#include "server/process/stop_signal.h"

#include <sys/signalfd.h>

namespace byteps {

StopSignal::StopSignal() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  sigaddset(&wanted, SIGINT);
  pthread_sigmask(SIG_SETMASK, nullptr, &before_);
  fd_.Reset(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (fd_) pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
}

StopSignal::~StopSignal() {
  while (Take() != nullptr) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

const char* StopSignal::Take() {
  struct signalfd_siginfo info;
  if (!fd_ || ::read(fd_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return nullptr;
  return info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace byteps
