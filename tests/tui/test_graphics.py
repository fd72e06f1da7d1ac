"""Which terminals draw pictures, and what they are sent."""

import base64
import io
import re
import subprocess
import sys

import pytest
from PIL import Image
from rich.console import Console

from erlcli.tui import graphics


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "blocks"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({"TERM": "linux"}, "blocks"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM_PROGRAM": "WezTerm"}, "sixel"),
        ({"LC_TERMINAL": "iTerm2"}, "sixel"),
        ({"KONSOLE_VERSION": "230801"}, "sixel"),
        ({"KONSOLE_VERSION": "210800"}, "blocks"),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}, "blocks"),
        ({"TERM": "screen"}, "blocks"),
        ({"TERM": "xterm", "ERL_GRAPHICS": "sixel"}, "sixel"),
        ({"TERM": "xterm-kitty", "ERL_GRAPHICS": "blocks"}, "blocks"),
        ({"TERM": "xterm-kitty", "ERL_GRAPHICS": "nonsense"}, "kitty"),
    ],
)
def test_kind(environ, expected):
    assert graphics.kind(environ) == expected


def test_cells_have_a_usual_size_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    monkeypatch.setattr(sys, "__stderr__", None)
    assert graphics.cell_size() == (10, 20)


def test_importing_asks_no_terminal_and_leaves_everything_as_it_was():
    """In a process of its own whose standard output says that it is a terminal and must not be written to."""
    code = """
import os, sys
class Terminal:
    def isatty(self): return True
    def fileno(self): raise OSError
    def write(self, text): os._exit(3)
    def flush(self): os._exit(4)
before = sys.__stdout__ = Terminal()
from erlcli.tui import graphics
graphics.prepare((7, 15))
assert sys.__stdout__ is before and "TEXTUAL_CELL_WIDTH" not in os.environ
from textual_image._terminal import get_cell_size
assert tuple(get_cell_size()) == (7, 15)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_kitty(monkeypatch):
    graphics.prepare((10, 20))
    picture = Image.effect_noise((200, 100), 50).convert("RGB")
    shown = graphics.KittyPicture(picture, 0x123456, 20, 5)
    message = shown.message()
    parts = re.findall(r"\x1b_G([^;\x1b]*);?([^\x1b]*)\x1b\\", message)
    assert "".join(f"\x1b_G{keys}{';' * bool(data)}{data}\x1b\\" for keys, data in parts) == message
    *sent, placed = parts
    assert len(sent) > 1 and all(len(data) <= 4096 for _, data in sent)
    assert [keys[-1] for keys, _ in sent] == ["1"] * (len(sent) - 1) + ["0"]
    with Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in sent)))) as received:
        assert received.convert("RGB").tobytes() == picture.tobytes()
    assert placed == (f"a=p,U=1,i={0x123456},c=20,r=5,q=2", "")
    assert shown.farewell() == f"\x1b_Ga=d,d=I,i={0x123456},q=2\x1b\\"

    def refuse(**kwargs):
        raise AssertionError("written past Textual")

    monkeypatch.setattr("textual_image.renderable.tgp._send_tgp_message", refuse)
    strips = shown.strips(Console(file=io.StringIO(), width=80))
    assert len(strips) == 5
    for strip in strips:
        assert strip.cell_length == 20 and strip.text.count("\U0010eeee") == 20
        assert strip._segments[0].style.color.triplet == (0x12, 0x34, 0x56)
