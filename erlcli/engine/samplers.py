"""Where rollouts come from. The loop sees one interface, whatever runs behind it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable

from erlcli.core.actor import Actor
from erlcli.core.compiled import Compiler
from erlcli.core.graphs import Graphs
from erlcli.core.pages import zeros
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Rollout
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.collector import Collector, Timing
from erlcli.engine.failures import Interrupted
from erlcli.envs.config import EnvConfig
from erlcli.envs.position import PositionLog
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError
from erlcli.runs.writer import EventLog, Heartbeat


class Sampler(ABC):
    """A source of rollouts.

    Within one stretch between restart points, rollout k is collected by version max(0, k - lag) of that stretch.

    Attributes:
        spec: of the environments of one process.
        timing: of the last rollout.
    """

    spec: EnvSpec
    timing: Timing

    @abstractmethod
    def restart(self, policy: Policy, version: int, seed: int, rollouts: int) -> None:
        """A restart point: reset every env, draw from `seed`, and start on the next rollouts.

        Args:
            policy: acts in the first rollout.
            version: of it.
            seed: of envs and exploration from here on.
            rollouts: how many are wanted until the next restart point; none is begun beyond.
        """

    @abstractmethod
    def recv(self) -> Rollout:
        """The next rollout; its tensors are valid until `send` or `restart`.

        Raises:
            Interrupted: the run is asked to stop.
            EnvError: an environment failed more often than may be.
        """

    @abstractmethod
    def send(self, policy: Policy, version: int) -> None:
        """Give out new weights, and go on collecting."""

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


class Failures:
    """Decides whether a failed source of rollouts is worth another start.

    One that never gave a rollout is not: whatever is wrong with it is wrong from the start. Otherwise failures count
    as in a row until `FORGET` rollouts lie between them.

    Args:
        limit: restarts in a row.

    Attributes:
        count: failures in a row.
    """

    FORGET = 10

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit
        self._rollouts = 0
        self._since = 0

    @property
    def worked(self) -> bool:
        """Whether there ever was a rollout."""
        return self._rollouts > 0

    def completed(self) -> None:
        """A whole rollout came."""
        self._rollouts += 1
        self._since += 1
        if self._since >= self.FORGET:
            self.count = 0

    def may_restart(self, *, first_counts: bool = True) -> bool:
        """A failure: whether to start anew. With `first_counts` False also where there never was a rollout."""
        self.count += 1
        self._since = 0
        return (self.worked or not first_counts) and self.count <= self._limit


class InlineSampler(Sampler):
    """Steps the environments in the learner's own process.

    Args:
        config: all environments of the learner.
        length: T.
        beat: told what comes next before each env step.
        events: told about failed environments.
        stop: whether the run is asked to stop.
        max_restarts: failures in a row that are healed by making the environments anew.
        position: told of every call into an environment.
        first_index: number of its first environment within the run.
        graphs: captures rollouts.
        actor: makes what acts for a policy.
        compiler: compiles env steps that are tensor operations.
    """

    def __init__(
        self,
        config: EnvConfig,
        length: int,
        beat: Heartbeat,
        events: EventLog,
        stop: Callable[[], bool],
        max_restarts: int,
        position: PositionLog | None = None,
        first_index: int = 0,
        graphs: Graphs | None = None,
        actor: Callable[[Policy], Actor] = Actor,
        compiler: Compiler | None = None,
    ) -> None:
        self.config = config
        self.length = length
        self.env = make_vec_env(config, position, compiler)
        self._compiler = compiler
        self._position = position
        self._first_index = first_index
        self._graphs, self._actor = graphs, actor
        self.spec = self.env.spec
        self.timing = Timing()
        self._beat = beat
        self._events = events
        self._stop = stop
        self._failures = Failures(max_restarts)
        self._seed = 0
        self._version = 0
        self._collector: Collector | None = None
        self._buffers: Buffers | None = None
        self._copy: Policy | None = None

    def restart(self, policy: Policy, version: int, seed: int, rollouts: int) -> None:
        """See `Sampler.restart`."""
        self._version, self._seed = version, seed
        policy = self._near(policy)
        if self._collector is None:
            self._collector = Collector(
                self.env, policy, self.length, self._first_index, self._on_step, self._graphs, self._actor(policy)
            )
            layout = rollout_layout(self.spec, policy, self.length, self.config.num_envs)
            device = self.spec.device
            self._buffers = Buffers({k: zeros(s, d, device) for k, (s, d) in layout.items()})
        self._collector.restart(seed)

    def recv(self) -> Rollout:
        """See `Sampler.recv`."""
        if self._collector is None or self._buffers is None:
            raise RuntimeError("restart() comes before recv()")
        while True:
            try:
                self._collector.collect(self._buffers)
                break
            except EnvError as error:
                self._heal(error, self._collector)
        self._failures.completed()
        self.timing = self._collector.timing
        return self._buffers.rollout(self._version)

    def _heal(self, error: EnvError, collector: Collector) -> None:
        """Make the environments anew, unless they never worked or failed too often."""
        # What a GPU tells of a rollout comes after it was learnt from.
        if self.spec.device.type == "cuda" or not self._failures.may_restart():
            raise error
        self._events.write(
            "env_restart",
            f"{error.message}; made anew, the unfinished rollout is dropped ({self._failures.count} in a row)",
            level="warning",
            **error.details,
        )
        self.env.close()
        self.env = make_vec_env(self.config, self._position, self._compiler)
        collector.use(self.env)
        collector.restart(derive(self._seed, "env_restart", self._version, self._failures.count))

    def send(self, policy: Policy, version: int) -> None:
        """See `Sampler.send`."""
        self._version = version
        self._near(policy)

    def _near(self, policy: Policy) -> Policy:
        """The policy where the environments are: itself, which the learner changes, or a copy as it is now."""
        if next(policy.parameters()).device == self.spec.device:
            return policy
        if self._copy is None:
            self._copy = copy.deepcopy(policy).to(self.spec.device)
        else:
            self._copy.load_state_dict(policy.state_dict())
        return self._copy

    def close(self) -> None:
        """See `Sampler.close`."""
        self.env.close()

    def _on_step(self, phase: str) -> None:
        self._beat.progress(phase)
        if self._stop():
            raise Interrupted
