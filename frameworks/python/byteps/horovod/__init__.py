"""Stand-ins for Horovod's modules.

import byteps.horovod.torch as hvd      # where a program has: import horovod.torch as hvd
"""
