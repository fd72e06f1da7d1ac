"""Drawing without a display. Light: to be called before any library that draws is loaded."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Mapping, MutableMapping


def has_display(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a window can be seen; systems other than Linux always have a place for one."""
    return not sys.platform.startswith("linux") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def draw_offscreen(environ: MutableMapping[str, str] = os.environ) -> None:
    """Where there is no display, let SDL and MuJoCo draw without one, unless the user chose a driver.

    Args:
        environ: to be changed; libraries read it when they are loaded.
    """
    environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if has_display(environ):
        return
    environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not environ.get("MUJOCO_GL"):
        for driver, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
            if ctypes.util.find_library(library):
                environ["MUJOCO_GL"] = driver
                return
