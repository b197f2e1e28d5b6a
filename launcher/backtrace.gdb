# Commands for gdb, in batch mode: runs the program and exits as it does; after a crash, where each thread was.
set confirm off
set pagination off
# What the launcher and others send to the program is the program's, and no reason to stop it.
handle SIGTERM SIGINT SIGHUP SIGQUIT SIGPIPE SIGUSR1 SIGUSR2 nostop noprint pass
run
if $_isvoid($_exitcode)
  backtrace
  thread apply all backtrace
  if !$_isvoid($_exitsignal)
    quit 128 + $_exitsignal
  end
  if $_isvoid($_siginfo.si_signo)
    quit 1
  end
  quit 128 + $_siginfo.si_signo
end
quit $_exitcode
