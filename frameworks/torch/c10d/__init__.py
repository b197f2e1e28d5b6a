"""BytePS as a backend of torch.distributed: init_process_group("byteps").

    import byteps.torch                                     # registers it
    torch.distributed.init_process_group("byteps")

Under bpslaunch, where torch.distributed's variables are not set, the ranks are those of the job::

    torch.distributed.init_process_group("byteps", init_method="byteps://")
"""

from byteps.torch.c10d.registration import register

__all__ = ["register"]
