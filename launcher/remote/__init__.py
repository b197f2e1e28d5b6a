"""A job over several hosts: bpslaunch here, an agent of it on each host, and a connection by ssh between them.

host_list         who takes part: --hosts, --hostfile, and the files of BytePS's dist_launcher
layout            which roles run on which host, and their variables
ssh               the command that reaches an agent
frame             what the two say to each other
agent             the far side: starts processes, reports, and ends them when it is alone
link              the near side of one connection, and the processes behind it
redial            a second call of hosts whose ssh daemons have turned the first one away
meeting_point     by which address the others reach a host
host_supervisor   the supervisor of such a job
host_check        `bpslaunch --check --hosts`
"""
