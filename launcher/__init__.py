"""bpslaunch: starts the processes of a job, watches over them, and leaves nothing behind.

The modules, in the order in which a launch passes through them:

    arguments      the command line
    environment    the DMLC_* and BYTEPS_* variables, read strictly
    check          `bpslaunch --check`: what would go wrong, before it does
    job            a whole job on this host: its processes and their variables
    roles          one role, by hand, the way of DMLC_ROLE
    affinity       which CPU cores workers, their library's threads and servers get
    remote         a whole job over several hosts, by ssh
    guardian       the processes in front: cover the death of the launcher itself
    supervisor     starts the processes, waits, ends the job
    child          one process: its pipes, its last lines, how it ended (`missing_library`: if it did not load)
    output         prefixes, whole lines, files per process
    process_tree   everything that descends from a process, and its end

Standard library only, Linux only. It runs from a checkout as well as from the installed package, so its modules import
each other relatively.
"""
