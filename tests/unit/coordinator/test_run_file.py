"""A mistake in a run file names file, key, what was found and what was expected."""

import msgspec
import pytest

from brigade.coordinator.run_file import FIXED_KEYS, changes, read_run_file, run_identity
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import FactoryData, RunSpec

GOOD = """
name = "toy"

[model]
kind = "gpt"

[data]
kind = "text"
path = "text.txt"
sequence_length = 16

[training]
max_steps = 10
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"bucket brigade " * 200)

    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("optim = AdamW", '; text needs quotes: optim = "AdamW"'),
        ("  loss = mse  # of values", '; text needs quotes: loss = "mse"'),
        ("factory = spirals.model:build", '; text needs quotes: factory = "spirals.model:build"'),
        ("shuffle = True", "; write shuffle = true"),
        ("max_steps = 1 2", ""),
        ("max_steps = ", ""),
    ],
)
def test_a_bare_word_is_answered_with_quotes(tmp_path, line, hint):
    path = tmp_path / "run.toml"
    path.write_text(f'name = "toy"\n[training]\n{line}\n')
    with pytest.raises(ConfigError) as caught:
        read_run_file(path)
    assert "(at line 3, column " in str(caught.value)
    assert str(caught.value).partition(")")[2] == hint


def test_a_good_file_is_read_and_its_paths_are_relative_to_it(write, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    run = read_run_file(write(GOOD))
    assert run.spec.name == "toy"
    assert run.spec.training.max_steps == 10
    assert run.data_path == run.path.parent / "text.txt"
    assert run.data.train_count == 178  # (3000 - 150 - 1) // 16
    assert run.data.inputs.leaves[0].shape(3) == (3, 16)


MISTAKES = {
    "unknown key": ("max_steps = 10", "max_steps = 10\nlearning_rat = 1", "training.learning_rat is not a known key", "did you mean 'learning_rate'"),
    "unknown key of a model": ('kind = "gpt"', 'kind = "gpt"\nhidden = 3', "model.hidden is not a known key", "hidden_size"),
    "unknown table": ("[training]", "[trainig]\nx = 1\n[training]", "trainig is not a known key", "did you mean 'training'"),
    "unknown key without a near one": ("max_steps = 10", "max_steps = 10\nzzz = 1", "training.zzz is not a known key", "known keys: max_steps"),
    "wrong type": ("max_steps = 10", 'max_steps = "ten"', "training.max_steps: expected `int`", "found 'ten'"),
    "out of range": ("max_steps = 10", "max_steps = 0", "training.max_steps: expected `int` >= 1", "found 0"),
    "missing key": ("max_steps = 10", "", "training.max_steps is missing", ""),
    "missing key, misspelt": ("max_steps = 10", "max_step = 10", "training.max_step is not a known key", "did you mean 'max_steps'"),
    "missing table": ('[model]\nkind = "gpt"', "", "model is missing", ""),
    "wrong kind": ('kind = "gpt"', 'kind = "gtp"', "model.kind: expected one of 'gpt', 'mlp', 'cnn', 'factory'", "did you mean 'gpt'"),
    "missing kind": ('kind = "gpt"', "", "model.kind is missing", ""),
    "wrong choice": ("max_steps = 10", 'max_steps = 10\nlr_scheduler_type = "linear"', "training.lr_scheduler_type: expected one of 'constant', 'cosine', 'wsd'", "found 'linear'"),
    "wrong element": ("max_steps = 10", 'max_steps = 10\nfreeze = ["a", 3]', "training.freeze[", "found"),
    "bad name": ('name = "toy"', 'name = "../x"', "name: expected", "found '../x'"),
    "not TOML": ("[model]", "[model", "is not TOML", "line"),
    "too many microbatches": ("max_steps = 10", "max_steps = 10\nbatch_size = 2", "training.microbatches is 4", "at most training.batch_size (2)"),
    "too large a batch": ("max_steps = 10", "max_steps = 10\nbatch_size = 65537", "training.batch_size is 65537", "at most 65536"),
    "too much warm-up": ("max_steps = 10", "max_steps = 10\nwarmup_steps = 11", "training.warmup_steps is 11", "at most max_steps (10)"),
    "decay without wsd": ("max_steps = 10", "max_steps = 10\ndecay_steps = 3", "training.decay_steps is 3", "found 'constant'"),
    "warm-up meets decay": ("max_steps = 10", 'max_steps = 10\nlr_scheduler_type = "wsd"\nwarmup_steps = 6\ndecay_steps = 6', "warmup_steps + decay_steps is 12", "at most max_steps (10)"),
    "key of another compensation": ("max_steps = 10", 'max_steps = 10\ndelay_compensation = "predict"\ndelay_extrapolation = 0.5', "training.delay_extrapolation is 0.5", "found 'predict'"),
    "unknown codec": ("[training]", '[compression]\nforward = "in8"\n[training]', "compression.forward:", "int8"),
    "heads do not divide": ('kind = "gpt"', 'kind = "gpt"\nhidden_size = 130', "model.hidden_size is 130", "num_attention_heads (4)"),
    "odd rope heads": ('kind = "gpt"', 'kind = "gpt"\nhidden_size = 12', "hidden_size / num_attention_heads is 3", "even"),
    "sequence too long": ("sequence_length = 16", "sequence_length = 2000", "data.sequence_length is 2000", "max_position_embeddings (1024)"),
    "vocabulary too small": ('kind = "gpt"', 'kind = "gpt"\nvocab_size = 100', "model.vocab_size is 100", "256"),
    "missing data": ("text.txt", "nothing.txt", "data.path", "nothing.txt"),
    "data too short": ("sequence_length = 16", "sequence_length = 1000\nvalidation_fraction = 0.9", "data.path", "bytes"),
    "a remedy that a mode cannot have": (
        "[training]",
        '[pipeline]\nmode = "async"\n[training]\ndelay_compensation = "predict"',
        "training.delay_compensation 'predict' is not carried out in a pipeline of mode 'async' yet",
    ),
    "versions without async": ("[training]", "[pipeline]\nversions = 3\n[training]", "pipeline.versions is for mode", "found mode 'exact'"),
    "more stages than nodes": ("[training]", "[pipeline]\nnodes = 2\nstages = 3\n[training]", "pipeline.stages is 3", "pipeline.nodes (2)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(write, mistake):
    old, new, *said = MISTAKES[mistake]
    assert old in GOOD
    path = write(GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_run_file(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in said:
        assert part in message, message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no run file .*nowhere\.toml"):
        read_run_file(tmp_path / "nowhere.toml")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"run\.toml cannot be read"):
        read_run_file(tmp_path / "run.toml")


def test_a_factory_data_set_is_left_to_the_nodes(write):
    text = GOOD.replace('kind = "text"\npath = "text.txt"\nsequence_length = 16', 'kind = "factory"\nfactory = "a.b:c"')
    run = read_run_file(write(text))
    assert isinstance(run.spec.data, FactoryData)
    assert run.data is None


def spec_of(**changes):
    import tomllib

    table = tomllib.loads(GOOD)
    for key, value in changes.items():
        *tables, name = key.split("__")
        place = table
        for part in tables:
            place = place.setdefault(part, {})
        place[name] = value
    return msgspec.convert(table, RunSpec)


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({"training__max_steps": 20}, True),
        ({"training__microbatches": 2}, True),
        ({"training__learning_rate": 0.1}, True),
        ({"pipeline__nodes": 3}, True),
        ({"compression__forward": "bf16"}, True),
        ({"data__path": "/elsewhere/text.txt"}, True),
        ({"output_dir": "x"}, True),
        ({"seed": 1}, False),
        ({"model__hidden_size": 64}, False),
        ({"data__sequence_length": 32}, False),
        ({"training__batch_size": 8}, False),
        ({"training__shuffle": False}, False),
        ({"training__optim": "SGD"}, False),
        ({"training__freeze": ["0.*"]}, False),
    ],
)
def test_what_a_resume_may_change(change, may):
    old, new = spec_of(), spec_of(**change)
    forbidden, allowed = changes(old, new)
    assert bool(allowed) is may
    assert bool(forbidden) is not may
    assert (run_identity(old) == run_identity(new)) is may
    (key,) = change
    assert key.replace("__", ".") in (forbidden + allowed)[0]


def test_other_data_is_another_run():
    assert run_identity(spec_of(), "a") != run_identity(spec_of(), "b")


def test_the_fixed_keys_exist():
    plain = msgspec.to_builtins(spec_of())
    for key in FIXED_KEYS:
        value = plain
        for part in key.split("."):
            value = value[part]
