import gymnasium
import pytest

from erlcli.envs.catalogue import catalogue
from erlcli.envs.config import ENVPOOL_IDS


@pytest.fixture
def registered():
    """Registers environments, and takes them away again."""
    ids = []

    def one(env_id, **kwargs):
        gymnasium.register(env_id, **kwargs)
        ids.append(env_id)

    yield one
    for env_id in ids:
        gymnasium.registry.pop(env_id, None)


def by_id(search=""):
    return {entry.id: entry for entry in catalogue(search)}


def test_all_that_is_registered_is_there():
    entries = by_id()
    assert set(entries) == set(gymnasium.registry)
    walker = entries["BipedalWalker-v3"]
    assert (walker.family, walker.max_episode_steps, walker.reward_threshold) == ("Box2D", 1600, 300.0)
    assert walker.envpool and walker.newest and walker.needs is None
    assert {entry.id for entry in entries.values() if entry.envpool and entry.family != "Atari"} == set(ENVPOOL_IDS)


def test_search_takes_no_notice_of_case():
    assert set(by_id("cartpole-V")) == {
        "CartPole-v0", "CartPole-v1", "phys2d/CartPole-v0", "phys2d/CartPole-v1", "torch/CartPole-v1",
    }  # fmt: skip
    shipped = by_id("torch/")["torch/PointChasing-v0"]
    assert (shipped.family, shipped.max_episode_steps, shipped.reward_threshold, shipped.needs) == (
        "Tensors, all copies stepped at once", 1024, 6.3, None,
    )  # fmt: skip
    assert by_id("no such thing") == {}


def test_newest_is_a_number_not_a_text(registered):
    for version in (2, 10, 9):
        registered(f"Numbered-v{version}", entry_point="here:There")
    registered("Plain", entry_point="here:There")
    entries = by_id()
    assert [i for i in entries if i.startswith("Numbered") and entries[i].newest] == ["Numbered-v10"]
    assert entries["Plain"].newest


def test_what_has_moved_or_lacks_a_package_says_so(registered):
    registered("Absent-v0", entry_point="absent_package.inner:There")
    registered("space/Present-v0", entry_point="json:JSONDecoder")
    registered("Callable-v0", entry_point=by_id)
    entries = by_id()
    assert entries["Absent-v0"].needs == "absent_package" and entries["Absent-v0"].family == "absent_package"
    assert (entries["space/Present-v0"].needs, entries["space/Present-v0"].family) == (None, "space")
    assert entries["Callable-v0"].needs is None
    assert entries["Hopper-v2"].needs == "gymnasium-robotics"


def test_order_is_by_family_then_id():
    keys = [(entry.family.lower(), entry.id.lower()) for entry in catalogue()]
    assert keys == sorted(keys)
