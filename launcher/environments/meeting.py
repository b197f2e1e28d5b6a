"""How processes that another launcher has started become a job: their hosts, the coordinator, the token.

    variables = meet(surroundings, os.environ, deadline)      # DMLC_* and BYTEPS_* as bpslaunch would have set them

Rank 0 starts the coordinator beside itself, and the first rank of each host its servers. What is beside the first rank
also ends the workers of its host when their launcher is gone: where the launcher is known, it is there without servers,
too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from typing import Any

from ..environment import Environment
from ..failure import LaunchError
from ..job_token import token_of, token_variables
from .addresses import meeting_address, own_networks
from .companion import Companion
from .launcher_process import LauncherProcess, is_launcher
from .place import Surroundings
from .silence import silence


def meet(surroundings: Surroundings, variables: Mapping[str, str], deadline: float) -> tuple[dict[str, str], Meeting]:
    """What to set in this process's environment, and what is to be closed once the session is open."""
    # Looked at now: when somebody is to watch it, it may be gone.
    launcher = os.getppid() if is_launcher(os.getppid()) else None
    meeting = Meeting(surroundings, Environment(variables), launcher)
    return meeting.run(deadline), meeting


class Meeting:
    """One exchange, and the companion that came of it."""

    def __init__(self, surroundings: Surroundings, environment: Environment, launcher: int | None) -> None:
        """`launcher`: the process that what is beside us is to watch; None: none is known, or somebody else does."""
        self._at = surroundings
        self._environment = environment
        self._companion: Companion | None = None
        self._can_abort = False
        self._launcher = (
            None if launcher is None else LauncherProcess(launcher, surroundings.launcher, surroundings.rank)
        )

    def run(self, deadline: float) -> dict[str, str]:
        """The variables of this process. A LaunchError names its rank and host."""
        with self._at.named():
            return self._meet(deadline)

    def _meet(self, deadline: float) -> dict[str, str]:
        own = {"host": self._at.host, "networks": own_networks(self._environment.text("DMLC_INTERFACE"))}
        answer = self._at.exchange.meet(own, self._answer, deadline)
        place, common = answer["place"], answer["common"]
        # On one host no host can be lost: nobody needs the launcher any more.
        self._can_abort = self._at.exchange.can_abort and int(common["DMLC_NUM_WORKER"]) > 1
        is_first = place["BYTEPS_LOCAL_RANK"] == "0"
        if self._at.rank != 0 and is_first and (answer["servers"] or self._launcher is not None):
            self._companion = Companion(self._environment)
            self._companion.start(None, answer["servers"], common, place["BYTEPS_LOCAL_SIZE"], self._launcher)
        return {**common, **place}

    def give_up(self) -> None:
        """From another thread: run() ends with a LaunchError, where the exchange can."""
        self._at.exchange.give_up()

    def close(self) -> None:
        """All processes have come; coordinator and servers stay as long as this process. What the launcher says to
        that is no reason to end a session that is open."""
        if not self._can_abort:
            with contextlib.suppress(LaunchError, OSError):
                self._at.exchange.close()

    def end(self, code: int) -> None:
        """This process is about to end. With a code other than 0 the launcher is told to end the job, with this code:
        by itself it would wait for a lost host for ever. Does not return then, where the launcher can be told."""
        if not self._can_abort:
            return
        self._can_abort = False
        if code == 0:
            with contextlib.suppress(LaunchError, OSError):  # The launcher is gone.
                self._at.exchange.close()
        else:
            self._at.exchange.abort(code)

    def leave(self, seconds: float | None) -> None:
        """Waits until what is beside this process has ended, at most so long; None: as long as others need it."""
        if self._companion is not None:
            self._companion.leave(seconds)

    # ---- In rank 0 ----

    def _answer(self, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
        hosts: dict[str, list[int]] = {}
        for rank, each in enumerate(given):
            hosts.setdefault(each["host"], []).append(rank)
        members = list(hosts.values())  # by their first rank
        servers = self._servers(len(members), len(given))
        common = {
            "DMLC_ROLE": "worker",
            "DMLC_NUM_WORKER": str(len(members)),
            "DMLC_NUM_SERVER": str(servers),
        }
        placed = [[rank for rank in range(servers) if rank % len(members) == host] for host in range(len(members))]
        if len(given) > 1 or servers:
            others = [given[ranks[0]]["networks"] for ranks in members[1:]]
            address = meeting_address(given[0]["networks"], others, self._environment.text("DMLC_INTERFACE"))
            common["BYTEPS_JOB_ID"] = f"{secrets.token_hex(6)}"
            common.update(token_variables(token_of(self._environment)))
            if len(members) > 1:
                common.update(silence(self._environment.variables()))
            if servers and len(members) == 1:
                common["BYTEPS_FORCE_DISTRIBUTED"] = "1"
            self._companion = Companion(self._environment)
            port = self._companion.start(address, placed[0], common, str(len(members[0])), self._launcher)
            common["DMLC_PS_ROOT_URI"], common["DMLC_PS_ROOT_PORT"] = address, str(port)
        in_order = [rank for ranks in members for rank in ranks] == list(range(len(given)))
        answers = []
        for rank, each in enumerate(given):
            ranks = hosts[each["host"]]
            host = members.index(ranks)
            place = {
                "DMLC_WORKER_ID": str(host),
                "BYTEPS_LOCAL_RANK": str(ranks.index(rank)),
                "BYTEPS_LOCAL_SIZE": str(len(ranks)),
            }
            if not in_order:
                place["BYTEPS_GLOBAL_RANK"] = str(rank)
            here = placed[host] if rank == ranks[0] else []
            answers.append({"place": place, "common": common, "servers": here})
        return answers

    def _servers(self, hosts: int, workers: int) -> int:
        asked = self._environment.integer("DMLC_NUM_SERVER", minimum=0)
        forced = self._environment.flag("BYTEPS_FORCE_DISTRIBUTED")
        if asked is None:
            return hosts if hosts > 1 else int(forced)
        if asked == 0 and (hosts > 1 or forced):
            raise LaunchError(f"DMLC_NUM_SERVER=0: {workers} workers on {hosts} hosts need at least one server")
        return asked
