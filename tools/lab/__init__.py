"""netlab: hosts with links of a known rate, on one machine, out of network namespaces.

    with Lab() as lab:                                            # a switch
        host = lab.add_host("server0", rate=200_000_000)          # a host with a cable to it
        server = host.popen(["byteps_server"], env=variables)     # a process on that host
        host.link_down()                                          # its cable, unplugged

The modules:

    namespaces   network, IPC and UTS namespaces that live as long as a process holds them
    rates        "200mbit" and what a token bucket makes of it
    lab          the switch, the hosts, their cables, and what can go wrong with these
    raw          how long a plain socket takes over the same cables
    interrupts   signals while all this is set up
    job          the processes of a BytePS job, each on its host
    main         the command line, `tools/netlab`

Everything a lab consists of belongs to namespaces that only its own processes hold: when these have ended, however they
ended, the kernel takes all of it down. So there is nothing to clean up, nothing of two labs can collide, and the
machine's own network is not touched.

Standard library only; needs Linux, root (CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2, and nftables for lost packets.
"""

from .lab import Host, Lab, LabError, why_not
from .rates import parse_rate

__all__ = ["Host", "Lab", "LabError", "parse_rate", "why_not"]
