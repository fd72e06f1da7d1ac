import ctypes.util

import pytest

from erlcli.envs import offscreen


@pytest.fixture
def linux(monkeypatch):
    """A Linux machine with the given libraries."""

    def has(*libraries):
        monkeypatch.setattr(offscreen.sys, "platform", "linux")
        monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in libraries else None)

    return has


@pytest.mark.parametrize(
    ("libraries", "driver"), [(("EGL", "OSMesa"), "egl"), (("EGL",), "egl"), (("OSMesa",), "osmesa"), ((), None)]
)
def test_without_a_display_drivers_draw_into_memory(linux, libraries, driver):
    linux(*libraries)
    environ = {}
    offscreen.draw_offscreen(environ)
    assert environ.get("MUJOCO_GL") == driver and environ["SDL_VIDEODRIVER"] == "dummy"


def test_a_display_and_the_user_have_their_way(linux):
    linux("EGL")
    for environ in ({"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "wayland-0"}):
        offscreen.draw_offscreen(environ)
        assert "MUJOCO_GL" not in environ and "SDL_VIDEODRIVER" not in environ
    environ = {"MUJOCO_GL": "osmesa", "SDL_VIDEODRIVER": "x11"}
    offscreen.draw_offscreen(environ)
    assert (environ["MUJOCO_GL"], environ["SDL_VIDEODRIVER"]) == ("osmesa", "x11")
