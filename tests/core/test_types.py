import dataclasses
import json

import pytest
import torch

from erlcli.core.algorithm import Supports
from erlcli.core.types import Box, Discrete, EnvSpec, FinalObs, MultiDiscrete, Rollout

INF = float("inf")
OBS = Box((2, 2), "float32", (-INF, -1.0, 0.1, -3.4028234663852886e38), (INF, 1.0, 0.30000001192092896, INF))
ACTIONS = [
    Discrete(4),
    Discrete(3, start=-1),
    MultiDiscrete((2, 3), (2,)),
    MultiDiscrete((2, 3, 4, 5), (2, 2), "int32", (1, 0, 0, 7)),
    Box((2,), "float32", (-1.0, -0.1), (1.0, 0.1)),
    Box((1,), "float64", (-INF,), (INF,)),
]


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("limit", [None, 1000])
def test_a_spec_survives_strict_json(action, limit):
    spec = EnvSpec(OBS, action, num_envs=3, max_episode_steps=limit)
    text = json.dumps(spec.to_json(), allow_nan=False)
    assert EnvSpec.from_json(json.loads(text), num_envs=3) == spec


def test_specs_of_before_stacks_and_flattening_were_told_are_read():
    obs = dataclasses.replace(OBS, stack=2)
    spec = EnvSpec(obs, Discrete(4), num_envs=1, flattened=True)
    row = json.loads(json.dumps(spec.to_json()))
    assert EnvSpec.from_json(row) == spec
    del row["obs"]["stack"], row["flattened"]
    assert EnvSpec.from_json(row) == EnvSpec(OBS, Discrete(4), num_envs=1)


def test_num_envs_is_not_part_of_a_saved_spec():
    row = EnvSpec(OBS, Discrete(2), num_envs=64).to_json()
    assert "num_envs" not in row
    assert EnvSpec.from_json(row).num_envs == 1


def test_what_is_no_spec_is_refused():
    row = EnvSpec(OBS, Discrete(2), 1).to_json()
    with pytest.raises(ValueError, match="text"):
        EnvSpec.from_json({**row, "action": {"kind": "text"}})
    with pytest.raises(ValueError, match="box"):
        EnvSpec.from_json({**row, "obs": row["action"]})


def test_box_size_and_bounds():
    assert OBS.size == 4 and not OBS.bounded
    assert Box((), "float32", (0.0,), (1.0,)).size == 1
    assert Box((2,), "float32", (-1.0, 0.0), (1.0, 2.0)).bounded
    assert not Box((2,), "float32", (-1.0, 0.0), (1.0, INF)).bounded


def test_supports():
    bounded, unbounded = Box((1,), "float32", (-1.0,), (1.0,)), Box((1,), "float32", (-INF,), (1.0,))
    discrete, multi = Discrete(2), MultiDiscrete((2,), (1,))
    every = Supports(discrete=True, multi_discrete=True, continuous=True, unbounded=True)
    assert all(every.accepts(space) for space in (bounded, unbounded, discrete, multi))
    tame = Supports(continuous=True)
    assert [tame.accepts(space) for space in (bounded, unbounded, discrete, multi)] == [True, False, False, False]
    assert tame.describe() == "Box with finite bounds"
    assert every.describe() == "Discrete, MultiDiscrete, Box"
    assert not any(Supports().accepts(space) for space in (bounded, unbounded, discrete, multi))


def test_a_rollout_on_its_device_is_itself():
    flag = torch.zeros(2, 1, dtype=torch.bool)
    finals = FinalObs(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 3))
    rollout = Rollout(
        torch.zeros(3, 1, 3), torch.zeros(2, 1), torch.zeros(2, 1), flag, flag, ~flag, finals, {"log_prob": flag}, 4
    )
    assert rollout.to(torch.device("cpu")) is rollout
    moved = rollout.to(torch.device("meta"))
    assert moved.version == 4 and moved.next_obs is None
    with_next = dataclasses.replace(rollout, next_obs=torch.zeros(2, 1, 3)).to(torch.device("meta"))
    assert with_next.next_obs.device.type == "meta"
    assert {t.device.type for t in (moved.obs, moved.valid, moved.final_obs.obs, moved.extras["log_prob"])} == {"meta"}
