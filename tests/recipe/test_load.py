"""What a user sees of a wrong recipe: always a `RecipeError` that names the key, never pydantic's own words."""

import datetime
import os
import re
import textwrap
from pathlib import Path

import pytest

from erlcli.core.schedule import Schedule
from erlcli.errors import RecipeError
from erlcli.recipe.load import MAX_BYTES, check_change, dump, load, merge, read_toml, validate
from erlcli.recipe.schema import NetworkSection

BASE = textwrap.dedent("""\
    [train]
    total_steps = 100_000
    {train}
    [env]
    id = "CartPole-v1"
    {env}
    [algorithm]
    name = "ppo"
    {algorithm}
    {rest}
    """)
# Words of pydantic, tomli and Python that mean nothing to the author of a recipe.
JARGON = re.compile(
    r"Input should|type=|_type|_parsing|pydantic|function-|literal\[|constrained|NoneType|Traceback|Extra inputs|"
    r"dict\b|\bstr\b|\bint\b|\bfloat\b|\bbool\b|instance of|Value error|Field required",
)


def text(train="", env="", algorithm="", rest=""):
    return BASE.format(train=train, env=env, algorithm=algorithm, rest=rest)


@pytest.fixture
def recipe_file(tmp_path, monkeypatch):
    """Writes `recipe.toml` into an empty current folder; its relative path."""
    monkeypatch.chdir(tmp_path)

    def write(content):
        path = Path("recipe.toml")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def refused(recipe_file):
    """The error for a recipe, after the checks that hold for every error."""

    def check(content, overrides=None):
        path = recipe_file(content)
        with pytest.raises(RecipeError) as caught:
            load(path, overrides)
        error = caught.value
        assert error.exit_code == 2
        for label in ("expected", "found", "remedy"):
            assert getattr(error, label), f"no {label} in:\n{error}"
        shown = str(error)
        assert not JARGON.search(shown), shown
        assert shown.isprintable() or all(line.isprintable() for line in shown.split("\n")), repr(shown)
        assert max(len(line) for line in shown.split("\n")[1:]) <= 80, shown
        return error

    return check


def key_of(error):
    source, key, what = error.message.split(": ", 2)
    assert source == "recipe.toml"
    return key, what


def test_a_right_recipe_loads(recipe_file):
    recipe = load(recipe_file(text(train="target_return = 475", algorithm="learning_rate = 1")))
    assert recipe.train.total_steps == 100_000
    assert recipe.train.target_return == 475.0  # a whole number will do for a number
    assert recipe.algorithm.learning_rate == Schedule(kind="constant", start=1.0, end=1.0)


UNKNOWN = [
    (text(rest="[trian]\nx = 1"), "trian", "did you mean train?"),
    (text(train="total_step = 3"), "train.total_step", "did you mean total_steps?"),
    (text(env="num_env = 3"), "env.num_env", "did you mean num_envs?"),
    (text(env="Num-Envs = 3"), "env.Num-Envs", "did you mean num_envs?"),
    (text(env='wrappers = ["a:b", {path = "a:b", kwarg = {}}]'), "env.wrappers[1].kwarg", "did you mean kwargs?"),
    (text(env='wrappers = [{pth = "a:b"}]'), "env.wrappers[0].pth", "did you mean path?"),
    (text(env='wrappers = [{path = "a:b", WrapperSpec = 1}]'), "env.wrappers[0].WrapperSpec", "remove it"),
    (text(algorithm="gama = 0.9"), "algorithm.gama", "did you mean gamma?"),
    (text(algorithm="lr = 0.1"), "algorithm.lr", "did you mean learning_rate?"),
    (text(algorithm="n_steps = 5"), "algorithm.n_steps", "did you mean rollout_length?"),
    (
        text(algorithm='learning_rate = {kind = "linear", strat = 1e-3}'),
        "algorithm.learning_rate.strat",
        "did you mean start?",
    ),
    (text(rest="[network]\nhiden = [1]"), "network.hiden", "did you mean hidden?"),
    (text(rest="[normalize]\nobservations = true"), "normalize.observations", "remove it"),
    (text(rest="[engine]\nworker = 1"), "engine.worker", "did you mean workers?"),
    (text(rest="[eval]\nepisode = 1"), "eval.episode", "did you mean episodes?"),
    (text(rest="[checkpoint]\nevery = 1"), "checkpoint.every", "put it under [log]"),
    (text(rest="[log]\ntensor_board = true"), "log.tensor_board", "did you mean tensorboard?"),
    (text(env="gamma = 0.9"), "env.gamma", "put it under [algorithm]"),
    ("total_steps = 5\n" + text(), "total_steps", "put it under [train]"),
    (text(rest="[algorithm.network]\nhidden = [1]"), "algorithm.network", "it is a section of its own: [network]"),
    (text(algorithm='"\\u001b[31m" = 1'), 'algorithm."\\u001b[31m"', "remove it"),
    ('[algoritm]\nname = "ppo"\n[env]\nid = "a"', "algoritm", "did you mean algorithm?"),
]


@pytest.mark.parametrize(("content", "key", "remedy"), UNKNOWN, ids=[key for _, key, _ in UNKNOWN])
def test_an_unknown_key(refused, content, key, remedy):
    error = refused(content)
    assert key_of(error) == (key, "unknown key")
    assert error.remedy.startswith(remedy)


def test_an_unknown_key_comes_with_those_that_are_known(refused):
    error = refused(text(rest='[network]\nhiden = 3\nactivation = "relu"'))
    assert " ".join(error.expected.split()) == ", ".join(NetworkSection.model_fields)
    assert error.found == "hiden"


MISSING = [
    ("", "algorithm", "a section [algorithm]"),
    ('[algorithm]\nname = "ppo"', "train", "a section [train]"),
    (text().replace('[env]\nid = "CartPole-v1"', ""), "env", "a section [env]"),
    (text().replace("total_steps = 100_000", ""), "train.total_steps", "a whole number > 0"),
    (text().replace('id = "CartPole-v1"', ""), "env.id", "text like"),
    (text().replace('name = "ppo"', ""), "algorithm.name", "ppo"),
    (text(env="wrappers = [{kwargs = {}}]"), "env.wrappers[0].path", "text like"),
    (text(algorithm="clip_range = {}"), "algorithm.clip_range.start", "a number >= 0"),
    (text(algorithm='clip_range = {kind = "linear"}'), "algorithm.clip_range.start", "a number >= 0"),
]


@pytest.mark.parametrize(("content", "key", "expected"), MISSING, ids=[key for _, key, _ in MISSING])
def test_a_missing_key(refused, content, key, expected):
    error = refused(content)
    assert key_of(error) == (key, "missing")
    assert expected in error.expected
    assert error.found == "nothing"
    assert error.remedy.startswith("add ")


TYPES = [
    (text(train="seed = true"), "train.seed", "a whole number", "true (a boolean)"),
    (text(train='seed = "1"'), "train.seed", "a whole number", '"1" (text)'),
    (text(train="seed = 1.0"), "train.seed", "a whole number", "1.0 (a number with a fraction)"),
    (text(train="seed = 1979-05-27"), "train.seed", "a whole number", "1979-05-27 (a date)"),
    (text(train='target_return = "high"'), "train.target_return", "a number", '"high" (text)'),
    (text(train="target_return = true"), "train.target_return", "a number", "true (a boolean)"),
    (text(train="device = 0"), "train.device", 'text like "auto"', "0 (a whole number)"),
    (text(env="num_envs = 8.0"), "env.num_envs", "a whole number from 1", "8.0 (a number with a fraction)"),
    (text(env="max_episode_steps = true"), "env.max_episode_steps", "a whole number >= 1", "true (a boolean)"),
    (text(env="kwargs = 3"), "env.kwargs", "a table", "3 (a whole number)"),
    (text(env='wrappers = "a:b"'), "env.wrappers", "a list", '"a:b" (text)'),
    (text(env="wrappers = [3]"), "env.wrappers[0]", "a table with path", "3 (a whole number)"),
    (text(env="wrappers = [[]]"), "env.wrappers[0]", "a table with path", "a list of 0"),
    (text(env="wrappers = [{path = 3}]"), "env.wrappers[0].path", "text like", "3 (a whole number)"),
    (text(env='wrappers = [{path = "a:b", kwargs = []}]'), "env.wrappers[0].kwargs", "a table", "a list of 0"),
    (text(algorithm="epochs = true"), "algorithm.epochs", "a whole number from 1 to 1,000", "true (a boolean)"),
    (text(algorithm="epochs = 10.0"), "algorithm.epochs", "a whole number", "10.0 (a number with a fraction)"),
    (text(algorithm="gamma = true"), "algorithm.gamma", "a number from 0 to 1", "true (a boolean)"),
    (text(algorithm='gamma = "0.9"'), "algorithm.gamma", "a number from 0 to 1", '"0.9" (text)'),
    (text(algorithm="squash = 1"), "algorithm.squash", "true or false", "1 (a whole number)"),
    (text(algorithm='squash = "True"'), "algorithm.squash", "true or false", '"True" (text)'),
    (text(algorithm="learning_rate = true"), "algorithm.learning_rate", "or a table with kind", "true (a boolean)"),
    (text(algorithm='learning_rate = "1e-3"'), "algorithm.learning_rate", "a number >= 0", '"1e-3" (text)'),
    (text(algorithm="learning_rate = []"), "algorithm.learning_rate", "a number >= 0", "a list of 0"),
    (
        text(algorithm='learning_rate = {kind = "linear", start = "1"}'),
        "algorithm.learning_rate.start",
        "a number >= 0",
        '"1" (text)',
    ),
    (text(algorithm='learning_rate = {start = "x"}'), "algorithm.learning_rate.start", "a number >= 0", '"x" (text)'),
    (text(rest="[engine]\nthreads = 2.0"), "engine.threads", 'or "auto"', "2.0 (a number with a fraction)"),
    (text(rest="[engine]\nthreads = true"), "engine.threads", 'or "auto"', "true (a boolean)"),
    (text(rest="[engine]\nthreads = {}"), "engine.threads", 'or "auto"', "an empty table"),
    (text(rest="[network]\nhidden = 64"), "network.hidden", "a list", "64 (a whole number)"),
    (text(rest='[network]\nhidden = [64, "64"]'), "network.hidden[1]", "a whole number", '"64" (text)'),
    (text(rest="[network]\nhidden = [true]"), "network.hidden[0]", "a whole number", "true (a boolean)"),
    (text(rest="[network]\nactivation = 3"), "network.activation", 'one of "tanh"', "3 (a whole number)"),
    ("log = 3\n" + text(), "log", "a section [log]", "3 (a whole number)"),
    (text(rest="[[log]]\nevery = 1"), "log", "a section [log]", "a list of 1"),
    (text().replace('"ppo"', "3"), "algorithm.name", "ppo", "3 (a whole number)"),
    ('algorithm = "ppo"\n', "algorithm", "a section [algorithm]", '"ppo" (text)'),
]


@pytest.mark.parametrize(
    ("content", "key", "expected", "found"), TYPES, ids=[f"{key}={found}" for _, key, _, found in TYPES]
)
def test_a_wrong_type(refused, content, key, expected, found):
    error = refused(content)
    assert key_of(error) == (key, "wrong type")
    assert expected in " ".join(error.expected.split())
    assert error.found == found


RANGES = [
    (text().replace("100_000", "0"), "train.total_steps", "> 0"),
    (text().replace("100_000", "-5"), "train.total_steps", "> 0"),
    (text(train="seed = -1"), "train.seed", ">= 0 and < 2^63"),
    (text(env="num_envs = 0"), "env.num_envs", "from 1 to 65,536"),
    (text(env="num_envs = 65_537"), "env.num_envs", "from 1 to 65,536"),
    (text(env="max_episode_steps = 0"), "env.max_episode_steps", ">= 1"),
    (text(algorithm="epochs = 0"), "algorithm.epochs", "from 1 to 1,000"),
    (text(algorithm="gamma = 1.5"), "algorithm.gamma", "from 0 to 1"),
    (text(algorithm="gae_lambda = -0.1"), "algorithm.gae_lambda", "from 0 to 1"),
    (text(algorithm="target_kl = 0"), "algorithm.target_kl", "> 0"),
    (text(algorithm="learning_rate = -1"), "algorithm.learning_rate", ">= 0, or a table with kind, start, end"),
    (text(algorithm="learning_rate = {start = -1.0}"), "algorithm.learning_rate.start", ">= 0"),
    (text(rest="[network]\nhidden = [64, 0]"), "network.hidden[1]", "from 1 to 65,536"),
    (text(rest="[engine]\nthreads = 0"), "engine.threads", '>= 1, or "auto"'),
    (text(rest="[engine]\nlag = 2"), "engine.lag", "from 0 to 1"),
    (text(rest="[eval]\nevery_steps = -1"), "eval.every_steps", '>= 1, or "auto"'),
    (text(rest="[checkpoint]\nkeep = 0"), "checkpoint.keep", ">= 1"),
    (text(rest="[log]\nevery = 0"), "log.every", '>= 1, or "auto"'),
    (text(algorithm=f"epochs = {'9' * 400}"), "algorithm.epochs", "64 bits"),
    (text(algorithm=f"learning_rate = {'9' * 400}"), "algorithm.learning_rate", "64 bits"),
    (text(algorithm="value_coef = 9223372036854775808"), "algorithm.value_coef", "64 bits"),
    (text(env=f"kwargs = {{n = 0x{'f' * 9000}}}"), "env.kwargs.n", "64 bits"),
]


@pytest.mark.parametrize(("content", "key", "expected"), RANGES, ids=[f"{key}-{e}" for _, key, e in RANGES])
def test_out_of_range(refused, content, key, expected):
    error = refused(content)
    assert key_of(error) == (key, "out of range")
    assert error.expected.endswith(expected)


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("where", "key"),
    [
        ({"train": "target_return = {}"}, "train.target_return"),
        ({"algorithm": "gamma = {}"}, "algorithm.gamma"),
        ({"algorithm": "learning_rate = {}"}, "algorithm.learning_rate"),
        ({"algorithm": 'learning_rate = {{kind = "linear", start = {}}}'}, "algorithm.learning_rate.start"),
        ({"rest": "[engine]\nhang_seconds = {}"}, "engine.hang_seconds"),
        ({"rest": "[normalize]\nobs_clip = {}"}, "normalize.obs_clip"),
        ({"rest": "[network]\nhidden = [1, {}]"}, "network.hidden[1]"),
    ],
)
def test_no_field_takes_nan_or_infinity(refused, where, key, value):
    error = refused(text(**{section: line.format(value) for section, line in where.items()}))
    assert key_of(error) == (key, "not a number")


def test_arguments_of_an_env_are_its_own_business(recipe_file):
    recipe = load(recipe_file(text(env="kwargs = {high = inf, day = 2020-01-01, deep = [{x = -inf}]}")))
    assert recipe.env.kwargs == {
        "high": float("inf"),
        "day": datetime.date(2020, 1, 1),
        "deep": [{"x": -float("inf")}],
    }


CHOICES = [
    (text().replace('"ppo"', '"pppo"'), "algorithm.name", "did you mean ppo?"),
    (text().replace('"ppo"', '"PPO"'), "algorithm.name", "did you mean ppo?"),
    (text().replace('"ppo"', '"zzzz"'), "algorithm.name", "take one of those"),
    (text(env='backend = "envpol"'), "env.backend", "did you mean envpool?"),
    (text(rest='[network]\nactivation = "relo"'), "network.activation", "did you mean relu?"),
    (text(rest='[engine]\nthreads = "atuo"'), "engine.threads", "did you mean auto?"),
    (
        text(algorithm='clip_range = {kind = "linaer", start = 1}'),
        "algorithm.clip_range.kind",
        "did you mean linear?",
    ),
]


@pytest.mark.parametrize(("content", "key", "remedy"), CHOICES, ids=[f"{key} {r}" for _, key, r in CHOICES])
def test_a_wrong_choice(refused, content, key, remedy):
    error = refused(content)
    found_key, what = key_of(error)
    assert found_key == key
    assert what in ("no such choice", "no such algorithm")
    assert error.remedy == remedy


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (text().replace('"CartPole-v1"', '""'), "env.id"),
        (text().replace('"CartPole-v1"', '"   "'), "env.id"),
        (text(train='device = "gpu"'), "train.device"),
        (text(train='device = "cuda:"'), "train.device"),
        (text(env='wrappers = ["Class"]'), "env.wrappers[0]"),
        (text(env='wrappers = [{path = ""}]'), "env.wrappers[0].path"),
        (text(algorithm="learning_rate = {start = 1.0, end = 0.5}"), "algorithm.learning_rate"),
        (text(rest=f"[network]\nhidden = [{'1, ' * 65}]"), "network.hidden"),
    ],
)
def test_a_value_that_is_not_allowed(refused, content, key):
    assert key_of(refused(content)) == (key, "not allowed")


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (text(algorithm='gamma = "0.9"'), "write 0.9 without quotes"),
        (text(algorithm="epochs = 10.0"), "write 10"),
        (text(algorithm='squash = "True"'), "write true, in small letters and without quotes"),
        (text(algorithm='target_kl = "none"'), "leave the key out: TOML has no null"),
        (text(rest="[network]\nhidden = 64"), "put it in brackets: [...]"),
        (text(env='wrappers = "x:Y"'), 'put it in brackets: ["x:Y"]'),
        (text(algorithm="gamma=0,99"), "a number has a decimal point: 0.99"),
        (text(algorithm="epochs=010 # ten"), "a number has no leading zeros: 10"),
        (text(rest="[network]\nhidden = 64, 64"), "a list is put in brackets: [64, 64]"),
        (text(rest="[network]\nhidden = [64"), "close the bracket: [64]"),
    ],
)
def test_the_remedy_says_what_was_meant(refused, content, remedy):
    assert refused(content).remedy == remedy


def test_several_problems_are_named_with_the_first_explained(refused):
    error = refused(text(train="seed = -1", algorithm="gamma = 2\nepochs = 0\ngama = 1"))
    assert key_of(error) == ("algorithm.gama", "unknown key")
    assert str(error).splitlines()[-1] == "  also:     train.seed, algorithm.gamma, algorithm.epochs"


TOGETHER = [
    (text().replace("100_000", "100"), "train.total_steps"),
    (text(env="num_envs = 1", algorithm="rollout_length = 10\nbatch_size = 64"), "algorithm.batch_size"),
    (text(env="num_envs = 8", rest="[engine]\nworkers = 3"), "engine.workers"),
    (text(env="num_envs = 8", rest="[engine]\nlearners = 3"), "engine.learners"),
    (text(env="num_envs = 8", rest="[engine]\nlearners = 4\nworkers = 4"), "engine.workers"),
    (text(rest='[network]\nrecurrent = "gru"\n[engine]\nlearners = 2'), "engine.learners"),
    (text(rest="[algorithm.h_term]\nenabled = true\n[engine]\nlearners = 2"), "engine.learners"),
    (text(rest="[engine]\nlag = 1"), "engine.lag"),
    (text(algorithm="sequence_length = 8"), "algorithm.sequence_length"),
    (text(rest="[eval]\nepisodes = 10\nprobe_episodes = 11"), "eval.probe_episodes"),
]


@pytest.mark.parametrize(("content", "key"), TOGETHER, ids=[key for _, key in TOGETHER])
def test_values_that_do_not_fit_each_other(refused, content, key):
    assert key_of(refused(content))[0] == key


SYNTAX = [
    ("x", 1, 2, "write key = value"),
    ("[train]\nlr 3", 2, 4, "write key = value"),
    ("[train", 1, 7, "close the bracket"),
    ("a = = 3", 1, 5, "text needs"),
    ("[env]\nid = CartPole-v1", 2, 6, "text needs"),
    ("a = True", 1, 5, "text needs"),
    ("a = .5", 1, 5, "text needs"),
    ("a = 1 2", 1, 7, "one key = value a line"),
    ('a = "x', 1, 7, "close the quotes"),
    ('a = "x\nb = 3', 1, 7, "close the quotes"),
    ('a = "\\q"', 1, 8, "close the quotes"),
    ("a = [1,\n2", 2, 2, "close the bracket"),
    ("a = {x = 1", 1, 11, "close the bracket"),
    ("a = 1\na = 2", 2, 6, "a key can be set once"),
    ("[a]\nx = 1\n[a]\ny = 1", 3, 3, "a key can be set once"),
    ("a = {x = 1, x = 2}", 1, None, "a key can be set once"),
    ("[a]\n[a.b]\n[a]", 3, 3, "a key can be set once"),
    ("a = \x01", 1, 5, ""),
    ("\0" * 50, 1, 1, ""),
]


@pytest.mark.parametrize(("content", "line", "column", "remedy"), SYNTAX, ids=[repr(c) for c, *_ in SYNTAX])
def test_a_syntax_error_has_its_place(refused, content, line, column, remedy):
    error = refused(content)
    place = re.match(r"recipe\.toml: line (\d+), column (\d+): \S", error.message)
    assert place, error.message
    assert int(place[1]) == line
    assert column is None or int(place[2]) == column
    assert remedy in error.remedy
    shown = content.splitlines()[line - 1].strip()
    assert error.found == shown or not shown.isprintable()


def test_the_relevant_part_of_a_long_line_is_shown(refused):
    error = refused("a = [" + "1, " * 500 + "oops, 2]")
    assert "oops" in error.found
    assert len(error.found) <= 60


@pytest.mark.parametrize("content", ["a = 'é'\n".encode("latin-1"), bytes(range(256)) * 20, b"\xff\xfea\0=\0"])
def test_what_is_not_utf8(refused, content):
    error = refused(content)
    assert "not a text file" in error.message
    assert error.expected == "UTF-8"


def test_a_byte_order_mark_and_windows_line_ends_are_fine(recipe_file):
    plain = load(recipe_file(text()))
    assert load(recipe_file(b"\xef\xbb\xbf" + text().replace("\n", "\r\n").encode())) == plain


DEEP = {
    "lists": "a = " + "[" * 10_000,
    "closed lists": "a = " + "[" * 10_000 + "]" * 10_000,
    "tables": "a = " + "{a = " * 10_000,
    "dotted key": ".".join("a" * 10_000) + " = 1",
    "spaced dotted key": " . ".join("a" * 10_000) + " = 1",
    "dotted header": "[" + ".".join("a" * 10_000) + "]",
    "quoted dotted key": ".".join(['"a"'] * 10_000) + " = 1",
    "behind a string": 'x = """a""""" \na = ' + "[" * 10_000,
    "behind an escaped quote": 'x = "\\""\na = ' + "[" * 10_000,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_is_refused_before_it_is_parsed(refused, name):
    error = refused(DEEP[name])
    assert "nested too deep" in error.message


@pytest.mark.parametrize(
    "content",
    [
        '"""\\"""x\n' * 40_000,
        "'''" * 100_001,
        '"' * 300_001,
        "\\" * 300_000,
        "a" * 500_000,
        "[a]\n" * 50_000,
        "." * 100_000,
        "#" * 300_000 + "[",
    ],
    ids=lambda content: repr(content[:8]),
)
def test_large_nonsense_is_refused_in_linear_time(refused, content):
    """Quadratic scanning of these would take minutes."""
    refused(content)


def test_brackets_and_dots_in_comments_and_strings_do_not_nest(recipe_file):
    noise = "# half-open [0, 1) { . . . . . . . . . . . . . . . . . . . .\n" * 40
    words = f'kwargs = {{a = "{"[" * 50}", b = \'{"{" * 50}\', c = """{"[" * 50}\n................."""}}'
    assert load(recipe_file(noise + text(env=words))).env.kwargs["a"] == "[" * 50


def test_a_file_of_10_mb_is_refused_unread(refused):
    error = refused(b"# comment\n" * 1_000_000)
    assert "too large" in error.message
    assert f"{MAX_BYTES:,}" in error.expected


def test_digits_beyond_what_python_converts(refused):
    error = refused(text(algorithm=f"epochs = {'9' * 5000}"))
    assert error.message == "recipe.toml: line 9: a number that is too long"
    assert error.found.startswith("epochs = 999")


@pytest.mark.parametrize("kind", ["folder", "nothing", "long name", "null byte", "empty name", "pipe", "run", "my run"])
def test_what_is_no_recipe_file(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("run", "my run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").touch()
    os.mkfifo(tmp_path / "pipe")
    reference = {"long name": "x" * 5000, "null byte": "a\0b", "empty name": "", "nothing": "nosuch.toml"}.get(
        kind, kind
    )
    with pytest.raises(RecipeError, match="no such recipe") as caught:
        load(reference)
    assert caught.value.exit_code == 2
    assert "cartpole_ppo" in caught.value.expected
    if kind == "run":
        assert "erl resume run" in caught.value.remedy
    if kind == "my run":
        assert "erl resume 'my run'" in caught.value.remedy


def test_a_file_without_permission(recipe_file, monkeypatch):
    def deny(path, mode):
        raise PermissionError(13, "Permission denied")

    path = recipe_file(text())
    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(RecipeError, match="can't be read") as caught:
        load(path)
    assert caught.value.found == "permission denied"


def test_a_file_that_goes_away_is_an_error_with_its_name(tmp_path):
    with pytest.raises(RecipeError, match="can't be read"):
        read_toml(tmp_path / "gone.toml")


EVERYTHING = {
    "train": {"total_steps": 2**63 - 1, "target_return": -200, "seed": 2**63 - 1, "device": "cuda:3"},
    "env": {
        "id": 'odd "id" \\ with \t ü',
        "backend": "gymnasium",
        "num_envs": 12,
        "kwargs": {
            "": 0,
            "a b": [1, 2.5, [True, "x"], {"deep": {"er": -0.0}}],
            "big": 1e300,
            "small": 5e-324,
            "third": 1 / 3,
            "inf": float("inf"),
            "day": datetime.date(2020, 2, 29),
            "noon": datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone.utc),
            "text": "line\nline\r\n\"\"\"''' \x7f \\ \u2028 \U0001f600",
            "empty": {"list": [], "table": {}},
        },
        "wrappers": [
            "package.module:Class",
            {"path": "a.b:C", "kwargs": {"shape": [84, 84], "nested": {"x": [{"y": 1}, {"y": 2}]}}},
            {"path": "a.b:D"},
        ],
        "max_episode_steps": 500,
        "frame_stack": 4,
    },
    "algorithm": {
        "name": "ppo",
        "rollout_length": 100,
        "batch_size": 240,
        "learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-5},
        "clip_range": {"kind": "cosine", "start": 0.3},
        "entropy_coef": {"start": 0.01},
        "clip_value": 0.2,
        "target_kl": 1,
        "squash": True,
    },
    "network": {"hidden": [], "activation": "silu", "layer_norm": True},
    "normalize": {"obs": True, "reward": True, "obs_clip": 5, "reward_clip": 0.1},
    "engine": {"workers": 3, "lag": 1, "threads": 2, "env_threads": 1, "hang_seconds": 0.5, "max_restarts": 0},
    "eval": {"episodes": 7, "probe_episodes": 7, "every_steps": 5, "num_envs": 3, "seed": 0, "keep_snapshots": True},
    "checkpoint": {"every_steps": 1, "keep": 1},
    "log": {"every": 9, "tensorboard": False},
}


ZOO = [
    True,
    0,
    -1,
    2**63,
    10**400,
    1.5,
    -0.0,
    1e308,
    float("nan"),
    float("-inf"),
    "",
    "auto",
    "1",
    "\x1b[31m\u2028\ud7ff" * 50,
    [],
    [[[]], {}, 1],
    {},
    {"kind": "linear", "start": 1.0},
    {"kind": [], "start": {}, "end": "x"},
    {"path": "a:B", "kwargs": {"x": [1]}, "WrapperSpec": 1},
    datetime.date(2020, 1, 1),
    datetime.time(1, 2),
]


@pytest.mark.parametrize("section", [*EVERYTHING, "nosuch"])
def test_any_value_anywhere_is_taken_or_refused_by_its_key(section):
    """Nothing that TOML can hold gets past as a traceback, or as an error about something else."""
    plain = {**EVERYTHING, "engine": {}}  # whose workers ask for a certain number of envs
    taken = refusals = 0
    for key in [None, "nosuch", *EVERYTHING.get(section, {})]:
        for value in ZOO:
            data = {**plain, section: value if key is None else {**plain.get(section, {}), key: value}}
            try:
                validate(data, "zoo")
                taken += 1
            except RecipeError as error:
                refusals += 1
                shown = str(error)
                assert not JARGON.search(shown), shown
                assert all(line.isprintable() for line in shown.split("\n")), repr(shown)
                if "does not fit" not in shown and "smaller than one rollout" not in shown:
                    where = section if key is None else f"{section}.{key}"
                    assert f"zoo: {where}" in shown or section in ("nosuch", "eval", "engine"), shown
    assert refusals > len(ZOO)
    assert taken or section == "nosuch"


# ---- overrides


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("train.seed=7", lambda r: r.train.seed == 7),
        ("train.seed = 7 ", lambda r: r.train.seed == 7),
        ("train.seed=7 # lucky", lambda r: r.train.seed == 7),
        ("train.seed=0x10", lambda r: r.train.seed == 16),
        ("algorithm.gamma=1", lambda r: r.algorithm.gamma == 1.0),
        ("algorithm.learning_rate=1e-4", lambda r: r.algorithm.learning_rate(0.5) == 1e-4),
        (
            'algorithm.learning_rate={kind="linear", start=1.0, end=0.5}',
            lambda r: r.algorithm.learning_rate(0.5) == 0.75,
        ),
        ('env.id="Acrobot-v1"', lambda r: r.env.id == "Acrobot-v1"),
        ("env.id='Acrobot-v1'", lambda r: r.env.id == "Acrobot-v1"),
        ("env.id=Acrobot-v1", lambda r: r.env.id == "Acrobot-v1"),
        ("env.id=package.module:Class", lambda r: r.env.id == "package.module:Class"),
        ("train.device=cuda:0", lambda r: r.train.device == "cuda:0"),
        ("algorithm.squash=true", lambda r: r.algorithm.squash is True),
        ("network.hidden=[32, 16]", lambda r: r.network.hidden == [32, 16]),
        ("network={hidden=[8]}", lambda r: r.network.hidden == [8]),
        ("env.kwargs={a = 1}", lambda r: r.env.kwargs == {"a": 1}),
        ("env.kwargs.a=1", lambda r: r.env.kwargs == {"a": 1}),
        ('env.kwargs."my key".x=1', lambda r: r.env.kwargs == {"my key": {"x": 1}}),
        ('env.wrappers=["a:B"]', lambda r: r.env.wrappers == ["a:B"]),
        ("env.kwargs.day=2020-01-01", lambda r: r.env.kwargs == {"day": datetime.date(2020, 1, 1)}),
    ],
)
def test_an_override(recipe_file, override, read):
    assert read(load(recipe_file(text()), [override]))


def test_overrides_apply_in_order(recipe_file):
    recipe = load(recipe_file(text()), ["train.seed=1", "train.seed=2", "env.kwargs.a=1", "env.kwargs.b=2"])
    assert recipe.train.seed == 2
    assert recipe.env.kwargs == {"a": 1, "b": 2}


def test_an_override_repairs_what_is_missing(recipe_file):
    content = text().replace("total_steps = 100_000", "")
    assert load(recipe_file(content), ["train.total_steps=50_000"]).train.total_steps == 50_000


def test_merge_leaves_its_argument_alone():
    data = {"env": {"id": "a", "kwargs": {"x": 1}}}
    assert merge(data, ["env.kwargs.x=2", "train.seed=1"]) == {
        "env": {"id": "a", "kwargs": {"x": 2}},
        "train": {"seed": 1},
    }
    assert data == {"env": {"id": "a", "kwargs": {"x": 1}}}


NO_ASSIGNMENT = ["", "train.seed", "=5", ".=5", "a..b=1", ".a=1", "a.=1", "a b=1", "a/b=1", "a\nb=1", '"a=1', "a" * 400]


@pytest.mark.parametrize("override", [*NO_ASSIGNMENT, ".".join("a" * 17) + "=1", ".".join("a" * 9999) + "=1"])
def test_what_is_no_assignment(refused, override):
    error = refused(text(), [override])
    assert error.message.startswith("--set ")
    assert error.message.endswith("not an assignment")
    assert len(error.message) <= 90
    assert "dotted.key=value" in error.expected


@pytest.mark.parametrize(
    "value", ["", "  ", "a b", '"', '"a', "{", "1 2", "1\nx = 2", "0x", "1e", "[" * 9999, "a=b", "@x"]
)
def test_what_is_no_toml_value(refused, value):
    error = refused(text(), [f"train.seed={value}"])
    assert error.message == "--set train.seed: not a TOML value"
    assert len(error.found) <= 60
    assert error.remedy == "quote text twice: --set 'train.seed=\"text\"'"


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("network.hidden=64,64", "a list is put in brackets: --set 'network.hidden=[64,64]'"),
        ("network.hidden=[64", "close the bracket: --set 'network.hidden=[64]'"),
        ("network.hidden[0]=64", "set the list as a whole: --set 'network.hidden=[...]'"),
        ("train.total_steps=1,000", "no commas in numbers: --set train.total_steps=1_000"),
        ("train.total_steps=1,500,000", "no commas in numbers: --set train.total_steps=1_500_000"),
        ("algorithm.gamma=0,99", "a number has a decimal point: --set algorithm.gamma=0.99"),
        ("algorithm.epochs=010", "a number has no leading zeros: --set algorithm.epochs=10"),
        ("env.wrappers=x:Y", 'put it in brackets: ["x:Y"]'),
    ],
)
def test_slips_with_lists_and_numbers_in_overrides(refused, override, remedy):
    assert refused(text(), [override]).remedy == remedy


def test_sections_of_a_tournament(refused):
    error = refused(text(), ["tournament.members=3"])
    assert "--set tournament" in error.message
    assert "erl tournament" not in error.remedy
    error = refused(text(rest="[tournament]\nmembers = 3"), ["tournament.members=3"])
    assert error.remedy.startswith("erl tournament recipe.toml;")


@pytest.mark.parametrize(
    ("override", "parent", "found"),
    [
        ('algorithm.learning_rate.kind="linear"', "algorithm.learning_rate", "0.001 (a number with a fraction)"),
        ("train.total_steps.x.y=1", "train.total_steps", "100000 (a whole number)"),
        ("env.id.x=1", "env.id", '"CartPole-v1" (text)'),
        ("env.wrappers.0=1", "env.wrappers", "a list of 1"),
    ],
)
def test_a_key_below_a_value_that_is_no_table(refused, override, parent, found):
    error = refused(text(env='wrappers = ["a:B"]', algorithm="learning_rate = 1e-3"), [override])
    assert error.message == f"--set {override.partition('=')[0]}: {parent} is not a table"
    assert error.found == found
    assert error.remedy.startswith(f"set it as a whole: --set '{parent}=")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algorithm.gama=1", "algorithm.gama"),
        ("train.seed=none", "train.seed"),
        ("train.seed=True", "train.seed"),
        ("train.target_return=-inf", "train.target_return"),
        ("train=3", "train"),
        ("algorithm.name=pp0", "algorithm.name"),
        ("network.hidden.0=3", "network.hidden"),
        ('algorithm.clip_range.kind="linear"', "algorithm.clip_range.start"),
        ("nosuch.key=1", "nosuch"),
    ],
)
def test_an_override_is_checked_like_the_file(refused, override, key):
    assert key_of(refused(text(), [override]))[0] == key


# ---- files beside the recipe


def test_a_file_beside_the_recipe_becomes_absolute(tmp_path, monkeypatch):
    folder = tmp_path / "sub"
    folder.mkdir()
    path = folder / "mine.toml"
    path.write_text(
        text(env='wrappers = ["../w.py:W", {path = "./v.py:V", kwargs = {x = 1}}, "package.module:Class"]').replace(
            "CartPole-v1", "./my_env.py:My"
        )
    )
    monkeypatch.chdir(tmp_path)
    for reference in (path, "sub/mine.toml"):
        env = load(reference).env
        assert env.id == f"{folder}/my_env.py:My"
        assert env.wrappers[0] == f"{tmp_path}/w.py:W"
        assert env.wrappers[1].path == f"{folder}/v.py:V"
        assert env.wrappers[1].kwargs == {"x": 1}
        assert env.wrappers[2] == "package.module:Class"


def test_a_file_in_an_override_counts_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("cartpole_ppo", ["env.id=./my_env.py:My"]).env.id == f"{tmp_path}/my_env.py:My"


def test_an_absolute_file_and_an_id_stay_as_they_are(recipe_file):
    assert load(recipe_file(text().replace("CartPole-v1", "/opt/e.py:E"))).env.id == "/opt/e.py:E"
    assert load(recipe_file(text().replace("CartPole-v1", "ALE/Pong-v5"))).env.id == "ALE/Pong-v5"


# ---- round trip


@pytest.mark.parametrize(
    ("key", "value", "before", "after"),
    [
        ("network.recurrent", '"lstm"', "unset, which its checkpoints are made for", '"lstm"'),
        ("network.share_trunk", "true", "unset, which its checkpoints are made for", "true"),
        ("normalize.obs", "true", "false, which its checkpoints are made for", "true"),
        ("network.hidden", "[8]", "[64, 64], which its checkpoints are made for", "[8]"),
    ],
)
def test_what_can_not_change_any_more_is_told_as_a_recipe_has_it(key, value, before, after):
    with pytest.raises(RecipeError, match=f"--set {key}: can't change any more") as caught:
        check_change(load("cartpole_ppo"), load("cartpole_ppo", [f"{key}={value}"]), "erl train run/recipe.toml")
    assert (caught.value.expected, caught.value.found) == (before, after)


def test_every_value_survives_dump_and_load(tmp_path):
    recipe = validate(EVERYTHING, "everything")
    path = tmp_path / "dump.toml"
    path.write_text(dump(recipe), newline="")
    again = load(path)
    assert again == recipe
    assert type(again) is type(recipe)
    assert again.env.kwargs["noon"] == EVERYTHING["env"]["kwargs"]["noon"]
    assert dump(again) == dump(recipe)


def test_the_defaults_survive_dump_and_load_and_none_is_left_out(recipe_file, tmp_path):
    recipe = load(recipe_file(text()))
    assert recipe.train.target_return is None
    path = tmp_path / "dump.toml"
    path.write_text(dump(recipe))
    assert "target_return" not in path.read_text()
    assert load(path) == recipe


def test_every_key_is_set_in_the_dump(recipe_file):
    """So that a run's recipe repeats it even after a default has changed."""
    recipe = load(recipe_file(text()))
    raw = recipe.to_toml()
    for section in type(recipe).model_fields:
        fields = type(getattr(recipe, section)).model_fields
        unset = {name for name in fields if getattr(getattr(recipe, section), name) is None}
        assert set(raw[section]) == set(fields) - unset
