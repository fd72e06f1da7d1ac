"""Where a tournament's slots are, kept beside its journal, so that whoever resumes it finds them again. Free of Ray."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
from dataclasses import dataclass

from erlcli.errors import DamagedError, RecipeError
from erlcli.runs.jsonl import Row, encode, read_json, write_json
from erlcli.runs.layout import RunLayout

FILE = "backend.json"
AUTO = "auto"
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class RaySettings:
    """A Ray cluster, and what each slot takes of it.

    Attributes:
        address: HOST:PORT of the cluster; `auto` is the one of RAY_ADDRESS or of this machine, and where there is
            none, one that is started for the tournament and ends with it.
        cpus: that a slot takes.
        gpus: share of a GPU that a slot takes; 0 for none.
    """

    address: str = AUTO
    cpus: int = 1
    gpus: float = 0.0

    @staticmethod
    def of(layout: RunLayout) -> RaySettings | None:
        """Those of a tournament; None for one on the slots of this machine.

        Raises:
            DamagedError: the file is there, and doesn't say all of them.
        """
        path = layout.root / FILE
        if not path.exists():
            return None
        row = read_json(path) or {}
        try:
            return RaySettings(str(row["address"]), int(row["cpus"]), float(row["gpus"]))
        except (KeyError, TypeError, ValueError):
            raise DamagedError(
                f"{path}: not the settings of a Ray cluster",
                expected="address, cpus and gpus, as erl tournament has written them",
                found=", ".join(row) or "no JSON object",
                remedy=f"write it anew: {encode(_as_row(RaySettings()))}",
            ) from None

    def save(self, layout: RunLayout) -> None:
        """Write them into a tournament's directory."""
        write_json(layout.root / FILE, _as_row(self))

    def check(self) -> None:
        """See whether they can be used, as far as that can be told at once.

        Raises:
            RecipeError: Ray is missing, or the address is none, or nobody listens there.
        """
        if importlib.util.find_spec("ray") is None:
            raise RecipeError(
                "--backend ray: Ray is not installed",
                expected="the package ray, the same version on every node",
                found="none",
                remedy="pip install 'erlcli[ray]', or --backend local",
            )
        address = self.resolved()
        if address is None:
            return
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdigit() and "/" not in host):
            raise RecipeError(
                f"--address {address}: not an address of a cluster",
                expected="HOST:PORT of its head (6379 unless set otherwise), or auto",
                found=address,
                remedy="run erl on a node of the cluster, where auto finds it",
            )
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise RecipeError(
                f"--address {address}: no cluster answers there",
                expected="a Ray head that this machine can reach",
                found=str(error),
                remedy="ray start --head on the head node, ray status shows whether it is up",
            ) from None

    def resolved(self) -> str | None:
        """The address to connect to; None for whatever is on this machine."""
        address = self.address if self.address != AUTO else os.environ.get("RAY_ADDRESS", AUTO)
        return None if address in (AUTO, "local", "") else address


def _as_row(settings: RaySettings) -> Row:
    return {"kind": "ray", **dataclasses.asdict(settings)}
