"""The agent pane: plays a film, says why there is none, costs nothing while it is hidden."""

import itertools

import pytest
from PIL import Image
from textual.app import App
from textual.screen import Screen

from erlcli.runs.agent import AgentFilm
from erlcli.tui import graphics
from erlcli.tui.theme import DARK
from erlcli.tui.widgets import agent
from erlcli.tui.widgets.agent import COLOURLESS, OVER, WAITING, AgentPane

MADE = 1_000.0
COLORS = [(248, 0, 0), (0, 248, 0), (0, 0, 248), (248, 248, 0)]


def film(folder, name="100.webp", made=MADE, size=(40, 20), **facts):
    """A film of four pictures, the upper half black, the lower one of a colour."""
    frames = []
    for color in COLORS:
        frame = Image.new("RGB", size)
        frame.paste(color, (0, size[1] // 2, *size))
        frames.append(frame)
    frames[0].save(folder / name, "WEBP", save_all=True, append_images=frames[1:], duration=100, lossless=True)
    facts = {"steps": 123_456, "total": 283.44, "length": 400, "fps": 10.0, "width": 40, "height": 20, **facts}
    return AgentFilm(made, path=folder / name, **facts)


class Stage(App[None]):
    """A pane alone, and a clock that the test moves."""

    CSS = "AgentPane { border: round $border-blurred; height: 1fr; }"

    def __init__(self):
        super().__init__()
        self.now = MADE + 42.0
        self.register_theme(DARK)
        self.theme = DARK.name
        self.pane = AgentPane()
        self.pane.border_title = "agent"

    def clock(self):
        return self.now

    def compose(self):
        yield self.pane


async def settled(app, pilot):
    """Until the film is read and painted."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


def text(app):
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def color_at(app, x, y):
    """Upper and lower colour of a cell of the pane's content."""
    strip = app.pane.render_line(y).crop(x, x + 1)
    style = strip._segments[0].style
    return tuple(style.color.triplet), tuple(style.bgcolor.triplet)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Stage()


async def test_before_there_is_a_film(stage):
    async with stage.run_test(size=(40, 12)) as pilot:
        stage.pane.update_from(None)
        await settled(stage, pilot)
        assert " ".join(text(stage).replace("│", " ").split()).count(WAITING) == 1
        assert stage.pane.border_subtitle == ""


async def test_why_there_is_none(stage):
    async with stage.run_test(size=(80, 12)) as pilot:
        stage.pane.update_from(None, OVER)
        await settled(stage, pilot)
        assert OVER in text(stage) and WAITING not in text(stage)


async def test_an_env_without_pictures(stage):
    async with stage.run_test(size=(40, 12)) as pilot:
        stage.pane.update_from(AgentFilm(MADE, unavailable="Odd-v0 has no pictures"))
        await settled(stage, pilot)
        assert "No pictures: Odd-v0 has no pictures." in text(stage)


async def test_the_film_plays_in_a_loop_that_rests_at_its_end(stage, tmp_path):
    async with stage.run_test(size=(42, 14)) as pilot:
        stage.pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        began = stage.now
        # 40 x 12 cells: the picture takes 40 x 10, its lower half begins at line 6.
        shown = []
        for second in (0.05, 0.15, 0.25, 0.35, 1.2, 1.45):
            stage.now = began + second
            stage.pane._advance()
            shown.append(color_at(stage, 5, 9)[0])
        assert shown == [COLORS[i] for i in (0, 1, 2, 3, 3, 0)]
        assert color_at(stage, 5, 1)[0] == (0, 0, 0)
        assert stage.pane.render_line(0).text.strip() == "" and stage.pane.render_line(11).text.strip() == ""


async def test_only_lines_that_change_are_painted(stage, tmp_path, monkeypatch):
    async with stage.run_test(size=(42, 14)) as pilot:
        stage.pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        painted = []
        monkeypatch.setattr(stage.pane, "refresh", lambda *regions, **_: painted.extend(regions))
        stage.pane._advance()
        assert painted == []  # the same picture
        stage.now += 0.15
        stage.pane._advance()
        assert sorted(region.y for region in painted) == [6, 7, 8, 9, 10]


async def test_the_caption(stage, tmp_path):
    async with stage.run_test(size=(60, 14)) as pilot:
        pane = stage.pane
        pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        assert pane.border_subtitle == "123.5k steps  return 283.4  42 s ago"
        for passed, ago in ((2, "now"), (59, "59 s ago"), (60, "1 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago")):
            stage.now = MADE + passed
            pane._caption()
            assert pane.border_subtitle.endswith(ago)
        pane.update_from(film(tmp_path, complete=False, quickness=4.2))
        assert "return 283.4 so far  4x" in pane.border_subtitle


async def test_a_film_is_read_once_a_size_and_a_newer_one_takes_its_place(stage, tmp_path, monkeypatch):
    from erlcli.tui import film as films

    reads, load = [], films.load

    def counted(path, columns, lines, cell):
        reads.append((path.name, columns, lines))
        return load(path, columns, lines, cell)

    monkeypatch.setattr(films, "load", counted)
    async with stage.run_test(size=(42, 14)) as pilot:
        first = film(tmp_path)
        for _ in range(3):
            stage.pane.update_from(first)
            await settled(stage, pilot)
        assert reads == [("100.webp", 40, 12)]
        await pilot.resize_terminal(60, 20)
        await settled(stage, pilot)
        assert reads[1:] == [("100.webp", 58, 18)]
        stage.pane.update_from(film(tmp_path, "200.webp", MADE + 10))
        await settled(stage, pilot)
        assert reads[2:] == [("200.webp", 58, 18)]


async def test_a_film_that_is_gone_or_damaged(stage, tmp_path):
    async with stage.run_test(size=(42, 14)) as pilot:
        one = film(tmp_path)
        one.path.unlink()  # a newer one has come between the facts and the look
        stage.pane.update_from(one)
        await settled(stage, pilot)
        assert "can't be read" not in text(stage)
        two = film(tmp_path, "200.webp")
        two.path.write_bytes(b"RIFF\x10\x00\x00\x00WEBPVP8 ")
        stage.pane.update_from(two)
        await settled(stage, pilot)
        assert "The film can't be read" in text(stage)
        stage.pane.update_from(film(tmp_path, "300.webp"))
        await settled(stage, pilot)
        assert "can't be read" not in text(stage) and color_at(stage, 5, 9)[0] == COLORS[0]


async def test_hidden_it_neither_reads_nor_ticks(stage, tmp_path):
    async with stage.run_test(size=(42, 14)) as pilot:
        pane = stage.pane
        pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        assert pane._playing._active.is_set() and pane._ticking._active.is_set()
        pane.display = False
        await settled(stage, pilot)
        assert not pane._playing._active.is_set() and not pane._ticking._active.is_set()
        pane.update_from(film(tmp_path, "200.webp", MADE + 10))
        await settled(stage, pilot)
        assert pane._wanted[0].path.name == "100.webp"
        pane.display = True
        await settled(stage, pilot)
        assert pane._wanted[0].path.name == "200.webp" and pane._playing._active.is_set()


async def test_under_another_screen_it_stands_still(stage, tmp_path):
    async with stage.run_test(size=(42, 14)) as pilot:
        stage.pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        await stage.push_screen(Screen())
        stage.now += 0.15
        stage.pane._advance()
        assert stage.pane._frame == 0
        stage.pop_screen()
        await pilot.pause()
        stage.pane._advance()
        assert stage.pane._frame == 1


async def test_without_colour_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_COLOR", "1")
    app = Stage()
    async with app.run_test(size=(60, 12)) as pilot:
        app.pane.update_from(film(tmp_path))
        await settled(app, pilot)
        assert COLOURLESS in text(app)
        assert "123.5k steps" in app.pane.border_subtitle and app.pane._clip is None


async def test_every_size(stage, tmp_path):
    async with stage.run_test(size=(1, 1)) as pilot:
        stage.pane.update_from(film(tmp_path))
        for width, height in itertools.product((1, 2, 3, 5, 40, 200), (1, 2, 3, 4, 60)):
            await pilot.resize_terminal(width, height)
            await settled(stage, pilot)
        stage.pane.update_from(None)
        for width, height in itertools.product((1, 2, 3, 5, 40, 200), (1, 2, 3, 4, 60)):
            await pilot.resize_terminal(width, height)
            await pilot.pause()


@pytest.fixture
def sent(monkeypatch):
    """What a terminal is sent that draws pictures itself."""
    messages = []
    monkeypatch.setattr(AgentPane, "_send", lambda self, message: messages.append(message))
    return messages


async def test_a_terminal_with_kittys_protocol_gets_each_picture_once(stage, tmp_path, sent, monkeypatch):
    monkeypatch.setattr(graphics, "cell_size", lambda: (10, 20))
    async with stage.run_test(size=(42, 14)) as pilot:
        pane = stage.pane
        pane.kind = "kitty"
        pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        for second in (0.15, 1.45, 1.55):
            stage.now = MADE + 42.0 + second
            pane._advance()
            await pilot.pause()
        numbers = [message.partition("i=")[2].partition(",")[0] for message in sent]
        assert numbers == [str(agent.FIRST_NUMBER + agent.NUMBERS + i) for i in (0, 1)]
        assert pane.render_line(5).text.count("\U0010eeee") == 40
        sent.clear()
        pane.update_from(film(tmp_path, "200.webp", MADE + 10))
        await settled(stage, pilot)
        gone = [message for message in sent if "a=d,d=I" in message]
        assert len(gone) == 2 and f"i={agent.FIRST_NUMBER}," in sent[-1]
        sent.clear()
        await pane.remove()
        assert sent == [f"\x1b_Ga=d,d=I,i={agent.FIRST_NUMBER},q=2\x1b\\"]


async def test_a_terminal_with_sixels_gets_textual_images_widget(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(graphics, "cell_size", lambda: (10, 20))
    async with stage.run_test(size=(42, 14)) as pilot:
        pane = stage.pane
        pane.kind = "sixel"
        pane.update_from(film(tmp_path))
        await settled(stage, pilot)
        (shown,) = pane.children
        assert shown.region.size == (40, 10)
        first = shown.image
        stage.now += 0.15
        pane._advance()
        await pilot.pause()
        assert shown.image is not first and shown.image.getpixel((0, 19)) == COLORS[1]
        assert "\x1bP" in "".join(
            segment.text for strip in stage.screen._compositor.render_strips() for segment in strip
        )


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 15)])
def test_snapshot(snap_compare, stage, tmp_path, size):
    async def play(pilot):
        stage.pane.update_from(film(tmp_path, size=(60, 40)))
        await settled(stage, pilot)

    assert snap_compare(stage, terminal_size=size, run_before=play)
