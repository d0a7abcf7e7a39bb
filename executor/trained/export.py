"""``python -m executor export RUN``: writes a trained model as a plain PyTorch module with its weights."""

import ast
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import torch

from executor.layers.build import build_layers
from executor.trained.check import check_export
from executor.trained.layer_texts import LayerText, pyg_layers, torch_layers
from executor.trained.source import Target, module_source
from executor.trained.weights import layer_tensors, read_weights
from simgnn.errors import BackendError, ConfigError
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.outside import fault_of_import
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.record.trained import FEATURE_MEAN, VERTEX_VECTORS, ModelFile, Trained, find_own_layers


def export_model(trained: Trained, target: Target, out: Path) -> list[str]:
    """Write the module ``out``, its weights (suffix ``.pt``), and for layers of the user's own their source; return
    sentences for the user. All files are complete, and checked against the executor's layers, before the first of them
    gets its name."""
    described = trained.described
    weights = read_weights(trained)
    own = described.kind not in BUILT_IN_LAYERS
    find_own_layers(trained.root)
    source = _own_source(trained) if own else ""
    if own:
        _import_as_trained(trained)
    layers = _layers(described, weights, target)
    beside = {name: weights[name] for name in (FEATURE_MEAN, VERTEX_VECTORS) if name in weights}
    caution = _caution(trained)
    notes = [f"warning: {caution}"] if caution else []
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.stem}.", dir=out.parent) as folder:
        made = Path(folder) / out.name
        files = [made, made.with_suffix(".pt")]
        try:
            made.write_text(module_source(described, trained.kept, target, layers, out.stem, caution), encoding="utf-8")
            torch.save({**layers.state, **beside}, files[1])
            if own:
                files.append(made.with_name(f"{out.stem}_layers.py"))
                files[2].write_text(source, encoding="utf-8")
        except (OSError, RuntimeError) as error:  # torch has errors of its own for a full disk
            raise BackendError(f"{out}: the export cannot be written ({error}); make room there") from error
        if not layers.imports or importlib.util.find_spec("torch_geometric") is not None:
            off = check_export(made, described, weights)
            notes.append(f"checked on a random graph: scores differ by at most {off:.1e} of the greatest one")
        else:
            notes.append("not checked, since torch_geometric is not installed here: pip install torch-geometric")
        for file in reversed(files):  # the module comes last: where it is, the others are
            os.replace(file, out.with_name(file.name))
    written = ", ".join(out.with_name(file.name).name for file in files)
    return [f"wrote {written} into {out.parent.resolve()}", *notes]


def _own_source(trained: Trained) -> str:
    """Return the source of the user's own layers. Raises :class:`ConfigError` if it does not define their class."""
    described, name = trained.described, trained.described.kind.partition(":")[2]
    source = "" if described.own_layers is None else (trained.folder / described.own_layers).read_text(encoding="utf-8")
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in ast.parse(source).body):
        raise ConfigError(
            f"model.kind: got '{described.kind}', whose file does not define the class {name}; expected, for an "
            "export, the module that defines it: name that module, and train again"
        )
    return source


def _import_as_trained(trained: Trained) -> None:
    """Import the module of the user's own layers from the source that the run kept: the file that it was imported from
    may have been edited or deleted since. Raises :class:`ConfigError` for whatever it raises."""
    module, kept = trained.described.kind.partition(":")[0], trained.folder / str(trained.described.own_layers)
    spec = importlib.util.spec_from_file_location(module, kept)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        raise ConfigError(
            f"model.kind: got '{trained.described.kind}', but importing the source that the run kept of it raised "
            f"{fault_of_import(error)}; what it imports must be importable here: put its folder on PYTHONPATH"
        ) from error


def _layers(described: ModelFile, weights: dict[str, torch.Tensor], target: Target) -> LayerText:
    specs, sampled = described.layers, described.inputs.sampled
    if described.kind in BUILT_IN_LAYERS:
        return (pyg_layers if target == "pyg" else torch_layers)(specs, weights, sampled)
    made = tuple(f"layer({spec.width_in}, {spec.width_out}, activation={spec.activation})" for spec in specs)
    # the run's layers hold the user's modules, the exported model is made of these
    state = {tensor.replace(".module.", ".", 1): value for tensor, value in layer_tensors(weights).items()}
    return LayerText("", (), made, state)


def _caution(trained: Trained) -> str:
    """Say for layers of the user's own that keep or take statistics of rows, such as BatchNorm, that no one model has
    the scores of a run on several ranks, each of which evaluates with statistics of its own; "" for others."""
    ranks = read_result(RunDirectory(trained.root).result).ranks
    layers = build_layers(trained.described.layers, 0)
    kept = [name for layer in layers for name, _ in layer.named_buffers()]
    # without running statistics an evaluation, too, normalises by the rows that lie on the rank
    drawn = [name for layer in layers for name, module in layer.named_modules() if _normalises_by_batch(module)]
    if ranks == 1 or not kept + drawn:
        return ""
    name = (kept + drawn)[0].removeprefix("module.")
    rule = (
        f"{name} and other statistics of the layers are those of rank 0."
        if kept
        else f"{name} normalises by statistics of all vertices that it is given."
    )
    return (
        f"{rule} Each of the {ranks} ranks trained and evaluated with statistics of its own vertices, so no one model "
        "has the scores of the run's evaluation, and those of this one differ. Train on one rank, or with layers "
        "without such statistics (LayerNorm), to take home the same scores."
    )


def _normalises_by_batch(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.BatchNorm1d) and module.running_mean is None
