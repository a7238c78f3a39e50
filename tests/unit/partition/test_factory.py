"""A factory that cannot be used is explained to the person who named it."""

import pytest
from torch import nn

from brigade.partition.chain import build_chain
from brigade.partition.factory import build_blocks, load_function
from brigade.wire.errors import ConfigError
from brigade.wire.run_spec import FactorySpec

MODULE = "tests.unit.partition.toy_models"


def test_a_factory_gets_its_arguments_and_may_return_any_sequence_of_modules():
    blocks = build_blocks(FactorySpec(factory=f"{MODULE}:conventional", arguments={"size": 3, "blocks": 2}))
    assert len(blocks) == 2
    assert blocks[0][0].in_features == 3
    assert all(isinstance(block, nn.Module) for block in blocks)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package.models:build", "no module 'no_such_package' on this machine; install it on every node"),
        (f"{MODULE}.deeper:build", "no module"),
        ("tests.unit.partition.no_such:build", "no module 'tests.unit.partition.no_such'"),
        (f"{MODULE}:convencional", "has no function 'convencional'; did you mean 'conventional'"),
        (f"{MODULE}:zzzzzz", "has no function 'zzzzzz'$"),
        (f"{MODULE}:number", "is a int, expected a function"),
        ("models", "expected package.module:function"),
        ("os:system", "is not model code"),
        ("torch.utils.cpp_extension:load_inline", "is not model code"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_function(name, "model.factory")
    assert str(caught.value).startswith("model.factory: ")


def test_modules_that_fail_to_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_more.py").write_text("import surely_not_installed\n")
    (tmp_path / "is_broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="module 'needs_more' needs 'surely_not_installed'"):
        load_function("needs_more:build", "data.factory")
    with pytest.raises(ConfigError, match=r"data.factory: importing 'is_broken' failed: ZeroDivisionError"):
        load_function("is_broken:build", "data.factory")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("empty", {}, "returned an empty list"),
        ("one_module", {}, "returned a Linear, expected a list"),
        ("not_modules", {}, "block 1 of .* is a str"),
        ("conventional", {"width": 3}, "failed: TypeError: .*width"),
        ("fails", {}, "failed: RuntimeError: no such thing$"),
        ("needs_values", {}, "failed: .*compute numbers that shape it without tensors"),
    ],
)
def test_factories_that_do_not_return_blocks(name, arguments, message):
    with pytest.raises(ConfigError, match=message):
        build_chain(FactorySpec(factory=f"{MODULE}:{name}", arguments=arguments))
