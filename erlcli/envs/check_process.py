"""The process in which `check` has its probes run: `python -m erlcli.envs.check_process OPTIONS RESULTS LIFELINE`.

It writes a JSON line for each probe that starts and for each finding, and goes when the other side has gone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from erlcli.envs.check import CheckOptions
from erlcli.envs.finding import Finding
from erlcli.envs.offscreen import draw_offscreen


def main() -> None:
    """Run the probes and tell; faults of the check itself are told too."""
    options, results, lifeline = CheckOptions.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    faulthandler.enable(all_threads=False)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    threading.Thread(target=_leave_when_orphaned, args=(lifeline,), daemon=True).start()

    def send(row: dict[str, Any]) -> None:
        os.write(results, json.dumps(row, default=str).encode() + b"\n")

    draw_offscreen()
    try:
        import torch

        from erlcli.envs.probes import run

        torch.set_num_threads(1)  # steps of a few small environments gain nothing from more
        for finding in run(options, lambda name: send({"probe": name})):
            send({"finding": finding.to_json()})
        send({"probe": None})
    except SystemExit:
        raise
    except BaseException as error:
        defect = Finding(
            "check",
            "fail",
            f"the check itself failed: {type(error).__name__}: {error}",
            "this is a defect of erl; please report it",
            {"traceback": traceback.format_exc()},
        )
        send({"finding": defect.to_json()})
        send({"probe": None})
    os._exit(0)  # whatever the env has left running goes with us


def _leave_when_orphaned(lifeline: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # the main thread answers it
    while os.read(lifeline, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
