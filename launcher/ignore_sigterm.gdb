# Commands for gdb, a file of their own: a gdb without Python refuses them, and goes on with the next file.
# SIGTERM is for the program. Once that has ended, it finds gdb alone, and a gdb with Python crashes in its own handler.
# The program itself starts with the handlers that gdb was started with.
python import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
