"""Games of ale-py; the backends are compared where both are installed. Dimension letters: N environments."""

import numpy as np
import pytest
import torch

from erlcli.envs.atari import area, taps
from erlcli.envs.config import AtariConfig, EnvConfig, choose_backend, envpool_refusal
from erlcli.envs.single import make_env
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import RecipeError

needs_ale = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("ale_py") is None, reason="the extra atari is not installed"
)
BREAKOUT = EnvConfig("ALE/Breakout-v5", "gymnasium", 2, frame_stack=4, atari=AtariConfig())


@pytest.mark.parametrize(("source", "target"), [(210, 84), (160, 84), (8, 4), (5, 5)])
def test_each_pixel_is_the_mean_of_what_it_covers(source, target):
    weights = area(source, target)
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)
    np.testing.assert_allclose(weights.sum(0), target / source, atol=1e-6)
    index, chosen = taps(source, target)
    again = np.zeros_like(weights)
    for row, at in zip(chosen, index, strict=True):
        np.add.at(again, (np.arange(target), at), row)
    np.testing.assert_allclose(again, weights, atol=1e-7)


def test_area_by_hand():
    """2.5 pixels in one: 1, 1, 0.5; then 0.5, 1, 1."""
    np.testing.assert_allclose(area(5, 2), np.array([[1, 1, 0.5, 0, 0], [0, 0, 0.5, 1, 1]]) / 2.5, atol=1e-6)


def test_a_game_goes_to_envpool_only_with_its_preprocessing():
    pytest.importorskip("envpool", reason="the extra fast is not installed")
    assert choose_backend(EnvConfig("ALE/Pong-v5", frame_stack=4, atari=AtariConfig()))[0] == "envpool"
    assert choose_backend(EnvConfig("ALE/Pong-v5"))[0] == "gymnasium"
    for odd in (AtariConfig(grey=False), AtariConfig(noop_max=0)):
        assert envpool_refusal(EnvConfig("ALE/Pong-v5", atari=odd)) is not None


@needs_ale
def test_preprocessing_of_what_is_no_game_is_refused():
    with pytest.raises(RecipeError, match=r"env\.atari"):
        make_env(EnvConfig("CartPole-v1", atari=AtariConfig(frame_skip=1)))


@needs_ale
def test_training_ends_at_lives_and_evaluation_at_games():
    """Without an action but the first of each life, the ball is lost five times."""
    for training in (True, False):
        env = make_env(BREAKOUT, training=training)
        env.reset(seed=3)
        ends, overs = 0, 0
        for _ in range(600):
            _, reward, terminated, truncated, info = env.step(0)
            assert reward == (np.sign(info["game_reward"]) if training else info["game_reward"])
            ends += terminated
            overs += info["game_over"]
            if terminated or truncated:
                if not training or info["game_over"]:
                    break
                env.reset()
        env.close()
        assert (ends, overs) == ((5 if training else 1), 1)


@needs_ale
def test_the_limit_is_one_of_games_and_truncates():
    config = EnvConfig("ALE/Pong-v5", "gymnasium", 1, max_episode_steps=7, atari=AtariConfig())
    env = make_vec_env(config)
    assert env.spec.max_episode_steps == 7
    env.reset(0)
    steps = [env.step(torch.zeros(1, dtype=torch.int64)) for _ in range(1)]
    for t in range(2, 8):
        steps.append(env.step(torch.zeros(1, dtype=torch.int64)))
        assert bool(steps[-1].truncated[0]) == (t == 7) == bool(steps[-1].game.over[0])
    env.close()


@needs_ale
def test_the_same_seed_plays_the_same_game():
    frames = []
    for _ in range(2):
        env = make_env(BREAKOUT, training=True)
        obs, _ = env.reset(seed=11)
        rows = [obs]
        for action in [0, 2, 3, 2, 2, 3] * 10:
            obs, _, terminated, _, _ = env.step(action)
            rows.append(obs)
            if terminated:
                rows.append(env.reset()[0])
        frames.append(np.stack(rows))
        env.close()
    assert np.array_equal(*frames)


@needs_ale
@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_both_backends_give_the_same_kind_of_thing(game):
    pytest.importorskip("envpool", reason="the extra fast is not installed")
    seen = {}
    for backend in ("gymnasium", "envpool"):
        config = EnvConfig(f"ALE/{game}-v5", backend, 2, frame_stack=4, threads=1, atari=AtariConfig())
        env = make_vec_env(config)
        obs = env.reset(0)
        assert obs.shape == (2, 4, 84, 84) and obs.dtype == torch.uint8
        source = torch.Generator().manual_seed(0)
        lost, rewards, games = 0, [], []
        for _ in range(250):
            step = env.step(torch.randint(env.spec.action.n, (2,), generator=source))
            assert step.obs.shape == (2, 4, 84, 84) and step.obs.dtype == torch.uint8
            assert not (step.game.over & ~(step.terminated | step.truncated)).any()
            lost += int((step.terminated & ~step.game.over).sum())
            rewards += step.reward.tolist()
            games += step.game.reward.tolist()
        assert set(rewards) <= {-1.0, 0.0, 1.0}
        seen[backend] = (env.spec, step.obs.float().mean(), lost > 0)
        env.close()
    (spec, mean, lost), (other, other_mean, other_lost) = seen.values()
    assert spec == other and lost == other_lost == (game == "Breakout")
    assert abs(mean - other_mean) < 3.0  # of 255: the same screen, shrunk alike
