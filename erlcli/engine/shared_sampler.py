"""Rollouts from worker processes, which write into memory that the learner reads in place.

Lockstep: every worker collects rollout k with the same version, so timing can't change results. With lag 1 there are
two slots of rollouts and two of weights, and the workers fill one while the learner reads the other.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Rollout
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.child import Child
from erlcli.engine.collector import Timing
from erlcli.engine.failures import Interrupted, Watch, died, hung
from erlcli.engine.samplers import Failures, Sampler
from erlcli.engine.shared import SharedBlock
from erlcli.engine.worker import env_share, slot, slotted, weights_layout
from erlcli.envs.config import env_config
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError, ErlError
from erlcli.recipe.load import AnyRecipe
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat


class Worker:
    """The learner's end of one worker.

    Attributes:
        pending: requests that it has not answered; repeated to its successor if it dies.
        failures: of it and its predecessors.
    """

    def __init__(self, index: int, max_restarts: int) -> None:
        self.index = index
        self.name = f"worker-{index}"
        self.child: Child | None = None
        self.connection: Connection | None = None
        self.pending: list[dict[str, Any]] = []
        self.failures = Failures(max_restarts)

    def request(self, message: dict[str, Any]) -> None:
        """Send a request; a dead worker is noticed when its answer is waited for."""
        if message["do"] == "collect":
            self.pending.append(message)
        try:
            if self.connection is not None:
                self.connection.send_bytes(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            pass

    def end(self, grace_seconds: float = 0.0) -> None:
        """Close the connection and see to it that the process is gone."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        if self.child is not None:
            self.child.end(grace_seconds)
            self.child = None


class SharedSampler(Sampler):
    """See the module's docstring.

    Args:
        layout: the run, whose recipe the workers read.
        recipe: the same recipe.
        policy: gives the shapes of weights and extras.
        beat: the learner's heartbeat.
        events: the learner's events.
        stop: whether the run is asked to stop.
        spec: of the environments of one worker.
        rank: of the learner whose workers they are.
    """

    def __init__(
        self,
        layout: RunLayout,
        recipe: AnyRecipe,
        policy: Policy,
        beat: Heartbeat,
        events: EventLog,
        stop: Callable[[], bool],
        spec: EnvSpec,
        rank: int = 0,
    ) -> None:
        self.spec = spec
        self.timing = Timing()
        self.lag = recipe.engine.lag
        self._layout, self._beat, self._events, self._stop = layout, beat, events, stop
        self._watch = Watch(recipe.engine.hang_seconds)
        length, envs, slots = recipe.algorithm.rollout_length, recipe.envs_per_learner, self.lag + 1
        self._memory = SharedBlock.create(slotted(rollout_layout(spec, policy, length, envs), slots))
        self._buffers = [Buffers(slot(self._memory, i)) for i in range(slots)]
        self._weights = SharedBlock.create(slotted(weights_layout(policy), slots))
        self._channels = [slot(self._weights, i) for i in range(slots)]
        count = recipe.engine.workers
        self._workers = [Worker(rank * count + i, recipe.engine.max_restarts) for i in range(count)]
        self._seed = 0
        self._restarts = 0
        self._requested = self._received = self._limit = 0  # rollouts since the last restart point
        self._versions: dict[int, int] = {}
        for worker in self._workers:
            self._start(worker)

    @staticmethod
    def spec_of(recipe: AnyRecipe) -> EnvSpec:
        """The spec of one worker's environments, from one of them made and closed here."""
        env = make_vec_env(env_config(recipe.env, 1, 1))
        env.close()
        return replace(env.spec, num_envs=env_share(recipe))

    def _start(self, worker: Worker) -> None:
        self._layout.position(worker.name).unlink(missing_ok=True)  # of its predecessor
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), self._memory.fd, self._weights.fd)
            worker.child = Child.spawn(
                worker.name,
                "erlcli.engine.worker",
                [str(self._layout.root), str(worker.index), *map(str, fds)],
                self._layout.output(worker.name),
                threads=1,
                inherit=fds,
            )
        worker.connection = Connection(ours.detach())

    def restart(self, policy: Policy, version: int, seed: int, rollouts: int) -> None:
        """See `Sampler.restart`."""
        while self._received < self._requested:  # a restart point that was not planned: what is under way is dropped
            self.recv()
        self._seed = seed
        self._requested = self._received = 0
        self._limit = rollouts
        self._versions.clear()
        self._publish(policy, 0)
        for worker in self._workers:
            worker.request({"do": "restart", "seed": seed})
        for _ in range(self.lag + 1):
            self._request(version, 0)

    def send(self, policy: Policy, version: int) -> None:
        """See `Sampler.send`."""
        weights = self._received % (self.lag + 1)
        self._publish(policy, weights)
        self._request(version, weights)

    def _publish(self, policy: Policy, weights: int) -> None:
        channel = self._channels[weights]
        for name, tensor in policy.state_dict().items():
            channel[name].copy_(tensor)

    def _request(self, version: int, weights: int) -> None:
        if self._requested == self._limit:
            return
        number = self._requested
        self._versions[number] = version
        self._requested += 1
        for worker in self._workers:
            worker.request({"do": "collect", "rollout": number, "slot": number % (self.lag + 1), "weights": weights})

    def recv(self) -> Rollout:
        """See `Sampler.recv`."""
        self._beat.progress("waiting for workers")
        number = self._received
        answers: list[dict[str, Any]] = []
        asked = time.monotonic()
        waiting = {w.index: w for w in self._workers if any(p["rollout"] == number for p in w.pending)}
        while waiting:
            if self._stop():
                raise Interrupted
            ready = set(wait([w.connection for w in waiting.values() if w.connection], timeout=0.2))
            self._beat.progress("waiting for workers")
            for worker in list(waiting.values()):
                if worker.connection in ready:
                    answer = self._answer(worker)
                    if answer is not None:
                        answers.append(answer)
                        del waiting[worker.index]
            if waiting and time.monotonic() - asked > 1.0:
                asked = time.monotonic()
                for worker in waiting.values():
                    self._check_hung(worker)
        self._received += 1
        timings = [Timing(a["env"], a["act"]) for a in answers]
        slowest = max(timings, key=lambda t: t.env + t.act, default=Timing())
        self.timing = slowest
        return self._buffers[number % (self.lag + 1)].rollout(self._versions.pop(number))

    def _answer(self, worker: Worker) -> dict[str, Any] | None:
        """One answer of a worker, or None: it had something to tell, or its successor has been started."""
        if worker.connection is None:
            raise RuntimeError(f"{worker.name} has no connection")
        try:
            answer: dict[str, Any] = json.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            code = worker.child.wait(5.0) if worker.child else None
            remedy = "the env may call os._exit, crash in native code, or run out of memory"
            self._replace(worker, died(worker.name, code, self._layout, remedy))
            return None
        if "error" in answer:
            error = ErlError.from_json(answer["error"])
            error.message = f"{worker.name}: {error.message}"
            self._replace(worker, error)
            return None
        if "event" in answer:
            self._events.write(answer["event"], answer["message"])
            return None
        worker.pending.pop(0)
        worker.failures.completed()
        return answer

    def _check_hung(self, worker: Worker) -> None:
        if worker.child is None:
            return
        error = hung(worker.name, worker.child.pid, self._layout, self._watch)
        if error is not None:
            self._replace(worker, error)

    def _replace(self, worker: Worker, error: ErlError) -> None:
        """Start a successor that does what the dead one owed, unless it never worked or failed too often."""
        worker.end()
        said_why = "traceback" in error.details  # a kill from outside says nothing about the env
        if not isinstance(error, EnvError) or not worker.failures.may_restart(first_counts=said_why):
            raise error
        self._restarts += 1
        self._events.write(
            "worker_restart",
            f"{error.message}; started anew, its unfinished rollout is dropped ({worker.failures.count} in a row)",
            level="warning",
            worker=worker.index,
            found=error.found,
            **error.details,
        )
        self._start(worker)
        owed, worker.pending = worker.pending, []
        worker.request({"do": "restart", "seed": derive(self._seed, "worker_restart", self._restarts)})
        for message in owed:
            worker.request(message)

    def close(self) -> None:
        """See `Sampler.close`."""
        for worker in self._workers:
            worker.request({"do": "leave"})
        deadline = time.monotonic() + 2.0
        for worker in self._workers:
            if worker.child is not None:
                worker.child.wait(max(0.0, deadline - time.monotonic()))
            worker.end()
        self._buffers, self._channels = [], []
        self._memory.close()
        self._weights.close()
