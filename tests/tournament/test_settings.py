"""Which cluster a tournament is on, before anything of Ray is loaded."""

import socket

import pytest

from erlcli.errors import DamagedError, RecipeError
from erlcli.runs.layout import RunLayout
from erlcli.tournament.backends.settings import RaySettings


def test_they_are_kept_beside_the_journal(tmp_path):
    layout = RunLayout(tmp_path)
    assert RaySettings.of(layout) is None
    RaySettings("10.0.0.1:6379", 2, 0.25).save(layout)
    assert RaySettings.of(layout) == RaySettings("10.0.0.1:6379", 2, 0.25)


@pytest.mark.parametrize("text", ['{"kind": "ray"}', '{"address": "auto", "cpus": "some", "gpus": 0}', "torn", "[1]"])
def test_a_file_without_them_is_damaged_and_not_a_tournament_on_this_machine(text, tmp_path):
    (tmp_path / "backend.json").write_text(text)
    with pytest.raises(DamagedError, match="not the settings of a Ray cluster") as caught:
        RaySettings.of(RunLayout(tmp_path))
    (tmp_path / "backend.json").write_text(caught.value.remedy.removeprefix("write it anew: "))
    assert RaySettings.of(RunLayout(tmp_path)) == RaySettings()


def test_auto_is_the_address_of_the_environment(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert RaySettings().resolved() == "head:6379"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert RaySettings().resolved() is None
    assert RaySettings("other:1").resolved() == "other:1"


@pytest.mark.parametrize("address", ["ray://head:10001", "head", ":6379", "head:port"])
def test_what_is_no_address(address, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with pytest.raises(RecipeError, match="not an address"):
        RaySettings(address).check()


def test_nobody_listens(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RecipeError, match="no cluster answers") as caught:
            RaySettings(address).check()
        assert caught.value.exit_code == 2
        free.listen()
        RaySettings(address).check()


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="Ray is not installed") as caught:
        RaySettings().check()
    assert "erlcli[ray]" in caught.value.remedy
