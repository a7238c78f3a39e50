"""What a node's owner lets a run import: nothing, unless a package was named at the start."""

from brigade.wire.run_spec import FactoryData, FactorySpec, RunSpec


def refused_code(spec: RunSpec, trusted: tuple[str, ...]) -> str:
    """Return why this run may not use its functions on this machine; empty when it may.

    A run file can name functions for model, data and loss, and another person wrote it. Code never travels, yet
    importing and calling what a stranger names is running code: each package needs the owner's word (`--trust`).
    """
    named = {
        "model.factory": spec.model.factory if isinstance(spec.model, FactorySpec) else "",
        "data.factory": spec.data.factory if isinstance(spec.data, FactoryData) else "",
        "training.loss": spec.training.loss if ":" in spec.training.loss else "",
    }
    for key, name in named.items():
        package = name.partition(":")[0].partition(".")[0]
        if name and package not in trusted:
            return (
                f"the run wants to import {name!r} ({key}) on this machine; "
                f"if you trust that package, start with --trust {package}"
            )
    return ""
