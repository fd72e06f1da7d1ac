"""`erl bench` of what can't be measured; what it measures is `engine.bench`'s."""

from pathlib import Path

import pytest

from erlcli.cli.bench import bench
from erlcli.errors import EnvError

HANDMADE = Path(__file__).parents[1] / "envs" / "handmade.py"
RECIPE = f"""
[train]
total_steps = 1000
[env]
id = "{HANDMADE}:Broken"
num_envs = 2
[algorithm]
name = "ppo"
rollout_length = 8
batch_size = 16
"""


def test_the_traceback_of_an_env_is_printed_since_nothing_is_kept(tmp_path, capsys):
    path = tmp_path / "broken.toml"
    path.write_text(RECIPE)
    with pytest.raises(EnvError, match="no simulator here") as caught:
        bench(str(path), None, 0.5, False)
    assert 'raise OSError("no simulator here")' in capsys.readouterr().err
    assert "errors/" not in str(caught.value)
