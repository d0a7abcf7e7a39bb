"""Writes the source of an exported model: a plain PyTorch module that needs nothing of simgnn."""

from textwrap import fill, indent
from typing import Literal

from executor.trained.layer_texts import NEIGHBOURHOOD, LayerText
from executor.trained.weighted_texts import NORMALISED, WEIGHTED_NEIGHBOURHOOD, weighted_edges
from simgnn.graph.load import STAND_IN_SEED
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.record.trained import FEATURE_MEAN, VERTEX_VECTORS, Kept, ModelFile

Target = Literal["pyg", "torch"]
WIDTH = 116


def module_source(
    described: ModelFile, kept: Kept, target: Target, layers: LayerText, name: str, caution: str = ""
) -> str:
    """Return the source of the module ``name``.py. ``layers``: its layers as text; ``kept``: which weights it has;
    ``caution``: sentences for its docstring on what it does not repeat."""
    own = described.kind not in BUILT_IN_LAYERS
    neighbourhood = WEIGHTED_NEIGHBOURHOOD if described.weighted else NEIGHBOURHOOD
    parts = [
        _docstring(described, kept, target, name, own, caution),
        _imports(described, target, layers, own),
        *([_class_names(described)] if described.class_names else []),
        _load(),
        *([OWN_LAYERS.format(file=f"{name}_layers.py")] if own else []),
        _model(described, layers, own),
        _edges(described, target, layers, own),
        *([_stand_in(described)] if described.inputs.stand_in else []),
        *([neighbourhood] if own else [layers.classes] if layers.classes else []),
    ]
    first, second, *others = parts  # the docstring and the imports
    return "\n".join((first, second)) + "".join(f"\n\n{part}" for part in others)


def _docstring(described: ModelFile, kept: Kept, target: Target, name: str, own: bool, caution: str) -> str:
    specs, inputs, dtype = described.layers, described.inputs, described.dtype
    widths = " -> ".join(str(width) for width in (inputs.feature_width, *(spec.width_out for spec in specs)))
    kind = (
        described.kind.partition(":")[2] if own else {"sage": "GraphSAGE"}.get(described.kind, described.kind.upper())
    )
    accuracy = ""
    if kept.validation is not None:
        metric = "micro-F1" if described.multilabel else "accuracy"
        if described.embeds:
            metric = "area under the ROC curve"
        accuracy = f" (validation {metric} {kept.validation:.4f})"
    classes = "scores > 0" if described.multilabel else "scores.argmax(dim=1)"
    features = "stand_in_features(data.num_nodes)" if inputs.stand_in else "data.x"
    imported = "load, stand_in_features" if inputs.stand_in else "load"
    packages = ["torch", *["torch_geometric"] * bool(target == "pyg" and not own), *["numpy"] * inputs.stand_in]
    needs = " and ".join(filter(None, (", ".join(packages[:-1]), packages[-1])))
    files = f"{name}.pt" + (f" and {name}_layers.py" if own else "")
    meaning = "one score a class; a vertex has those above 0" if described.multilabel else "one score a class"
    output = "Embeddings" if described.embeds else "Scores"
    if described.embeds:
        meaning = "trained without labels: the product of two rows is high for vertices that are neighbours"
    paragraphs = [
        f"{kind} with {len(specs)} layer{'s' if len(specs) > 1 else ''}, widths {widths}, trained by simgnn.",
        f"The weights are those after epoch {kept.epoch}{accuracy}. Keep {files} beside this file.",
        None,
        f"``data`` is a torch_geometric.data.Data or any object with x [vertices, {inputs.feature_width}] and "
        "edge_index [2, edges], whose first row holds the sources of edges and whose second row their targets"
        f"{', and edge_weight [edges]' if described.weighted else ''}. {output} are {dtype} "
        f"[vertices, {described.classes}], {meaning}.",
        "The classes have names: class k is CLASS_NAMES[k] of this module." if described.class_names else "",
        " ".join(_repeated(described)),
        caution,
        f"It needs {needs}, and nothing of simgnn.",
    ]
    edges = "data.edge_index, data.edge_weight" if described.weighted else "data.edge_index"
    example = f"from {name} import {imported}\n\nmodel = load()\n{output.lower()} = model({features}, {edges})"
    example += "" if described.embeds else f"\nclasses = {classes}"
    texts = [indent(example, "    ") if text is None else fill(text, WIDTH) for text in paragraphs if text != ""]
    return '"""' + "\n\n".join(texts) + '\n"""\n'


def _repeated(described: ModelFile) -> list[str]:
    """Return sentences that say what the module does to graph and features before layer 1, as training did."""
    inputs = described.inputs
    reverse = ", and adds the reverse of every edge" if inputs.symmetrised else "; edges keep their direction"
    repeated = "repeated edges"
    if described.weighted:
        repeated = "adds up the weights of repeated edges"
        if inputs.symmetrised:
            reverse = ", and adds the reverse of every edge, with its weight, where that is not there"
    dropped = f"it drops self-loops and {repeated}{reverse}"
    found = [f"Give it the raw graph: as training did, {dropped}."]
    if inputs.centred:
        found.append("It subtracts from the features the means of the graph that it was trained on.")
    if inputs.stand_in:
        found.append(
            "The graph had no features, so training drew random ones, by the number of the vertex; they mean nothing "
            "on another graph."
        )
    if inputs.vector_width:
        found.append(
            f"Behind its features each vertex has {inputs.vector_width} learned numbers, so the module works on the "
            "vertices that it was trained on, in the same order."
        )
    return found


def _imports(described: ModelFile, target: Target, layers: LayerText, own: bool) -> str:
    standard = ["import importlib.util", "import sys"] if own else []
    standard.append("from pathlib import Path")
    if own:
        standard.append("from types import ModuleType")
    others = ["import numpy"] if described.inputs.stand_in else []
    others += ["import torch", "from torch import nn"]
    calls = (layers.classes, *_steps(described, own))
    if own or any("functional." in text for text in calls):
        others.append("from torch.nn import functional")
    if layers.imports:
        utils = ["remove_self_loops", "to_undirected" if described.inputs.symmetrised else "coalesce"]
        utils += ["add_self_loops"] if layers.looped else []
        others.append(f"from torch_geometric.nn import {', '.join(layers.imports)}")
        if not described.weighted:
            others.append(f"from torch_geometric.utils import {', '.join(sorted(utils))}")
    return "\n".join((*standard, "", *others, "", 'WEIGHTS = Path(__file__).with_suffix(".pt")', ""))


def _class_names(described: ModelFile) -> str:
    # repr: names are a user's text, and must not become code
    names = "".join(f"    {name!r},\n" for name in described.class_names)
    return f"CLASS_NAMES = (\n{names})\n"


def _load() -> str:
    return '''\
def load(weights: str | Path = WEIGHTS, device: str = "cpu") -> "Model":
    """Return the trained model on a device, ready to predict."""
    model = Model()
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.to(device).eval()
'''


OWN_LAYERS = '''\
def own_layers() -> ModuleType:
    """Import the file with the source of the layers, as the run had it."""
    path = Path(__file__).with_name("{file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
'''


def _model(described: ModelFile, layers: LayerText, own: bool) -> str:
    inputs, single, weighted = described.inputs, described.dtype == "float32", described.weighted
    edges = ", edge_index [2, edges], edge_weight [edges]" if weighted else " and edge_index [2, edges]"
    output = "Embeddings" if described.embeds else "Scores"
    lines = [
        "class Model(nn.Module):",
        f'    """{output} [vertices, {described.classes}] of all vertices, from x [vertices, {inputs.feature_width}]'
        f'{edges}."""',
        "",
        "    def __init__(self) -> None:",
        "        super().__init__()",
    ]
    if own:
        lines.append(f"        layer = own_layers().{described.kind.partition(':')[2]}")
    lines.append("        self.layers = nn.ModuleList(")
    lines += ["            [", *(f"                {text}," for text in layers.made), "            ]", "        )"]
    if inputs.vector_width:
        rows = described.weights[VERTEX_VECTORS][0]
        lines.append(f"        self.vertex_vectors = nn.Parameter(torch.zeros({rows}, {inputs.vector_width}))")
    if not single:
        lines.append("        self.double()  # the run trained in float64")
    if inputs.centred:
        zeros = f"torch.zeros({inputs.feature_width}, dtype=torch.float64)"
        lines.append(f'        self.register_buffer("{FEATURE_MEAN}", {zeros})')
    lines += [
        "",
        *(f"    {line}" for line in _forward(weighted)),
        "        x = self.prepare_features(x)",
        # convolutions of PyTorch Geometric multiply rows with the weights that they get
        *(["        edge_weight = edge_weight.to(x.dtype)"] if weighted and layers.imports else []),
        *([f"        csr = Neighbourhood(edge_index, len(x){', edge_weight, x.dtype' * weighted})"] if own else []),
        *(f"        {line}" for line in _steps(described, own)),
        "",
        "    def prepare_features(self, x: torch.Tensor) -> torch.Tensor:",
        '        """Return the rows that layer 1 reads, as training computed them."""',
        *(f"        {line}" for line in _features(described)),
    ]
    return "\n".join(lines) + "\n"


def _forward(weighted: bool) -> list[str]:
    """Return the lines with which the model's ``forward`` begins, up to the edges as training had them."""
    if not weighted:
        return [
            "def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:",
            "    edge_index = prepare_edges(edge_index, len(x))",
        ]
    return [
        "def forward(",
        "    self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None",
        ") -> torch.Tensor:",
        "    # None is an error that says what is missing",
        "    edge_index, edge_weight = prepare_edges(edge_index, edge_weight, len(x))",
    ]


def _steps(described: ModelFile, own: bool) -> list[str]:
    """Return the lines that run all layers."""
    first: LayerSpec = described.layers[0]
    if own:
        if first.whole:
            return ["for layer in self.layers:", "    x = layer(csr, x)", "return x"]
        rows = "layer.prepare(x)" if first.has_prepare else "x"
        return ["for layer in self.layers:", f"    x = layer.update(layer.aggregate(csr, {rows}), x)", "return x"]
    edges = "edge_index, edge_weight" if described.weighted else "edge_index"
    if len(described.layers) == 1:
        return [f"return self.layers[0](x, {edges})"]
    activation = "functional.elu(x)" if first.function == "elu" else "torch.relu(x)"
    lines = ["for layer in self.layers[:-1]:", f"    x = layer(x, {edges})", f"    x = {activation}"]
    if first.dropped:
        lines.append(f"    x = functional.dropout(x, {first.dropout}, training=self.training)")
    return [*lines, f"return self.layers[-1](x, {edges})"]


def _features(described: ModelFile) -> list[str]:
    inputs, dtype = described.inputs, f"torch.{described.dtype}"
    lines = [
        f"if x.shape[1] != {inputs.feature_width}:",
        f'    raise ValueError(f"the model reads {inputs.feature_width} features a vertex, x has {{x.shape[1]}}")',
        "x = x.to(torch.float32)  # features are read in single precision",
    ]
    if inputs.vector_width:
        lines[:0] = [
            "if len(x) != len(self.vertex_vectors):",
            '    raise ValueError(f"the model was trained on {len(self.vertex_vectors)} vertices, x has {len(x)}")',
        ]
    if inputs.centred:
        lines.append(f"x = x.to(self.{FEATURE_MEAN}.dtype) - self.{FEATURE_MEAN}")
        lines += ["x = x.to(torch.float32)  # so training held them"] * (inputs.centred == "single")
    if dtype != ("torch.float64" if inputs.centred == "exact" else "torch.float32"):
        lines.append(f"x = x.to({dtype})")
    return [*lines, "return torch.cat((x, self.vertex_vectors), dim=1)" if inputs.vector_width else "return x"]


def _edges(described: ModelFile, target: Target, layers: LayerText, own: bool) -> str:
    symmetrised = described.inputs.symmetrised
    if described.weighted:
        return weighted_edges(symmetrised, described.kind in NORMALISED, layers.averaged)
    what = "with the reverse of each" if symmetrised else "in their direction"
    lines = [
        "def prepare_edges(edge_index: torch.Tensor, vertices: int) -> torch.Tensor:",
        f'    """Return the edges as training had them: each once and {what}, without self-loops."""',
    ]
    if target == "pyg" and not own:
        lines.append("    edge_index, _ = remove_self_loops(edge_index)")
        made = "to_undirected" if symmetrised else "coalesce"
        made = f"{made}(edge_index, num_nodes=vertices)"
        if not layers.looped:
            return "\n".join((*lines, f"    return {made}")) + "\n"
        return "\n".join((
            *lines,
            f"    edge_index = {made}",
            "    # on mini-batches a GCN takes the mean over a vertex and its in-neighbours",
            "    edge_index, _ = add_self_loops(edge_index, num_nodes=vertices)",
            "    return edge_index",
        )) + "\n"  # fmt: skip
    lines.append("    source, target = edge_index")
    if symmetrised:
        lines.append("    source, target = torch.cat((source, target)), torch.cat((target, source))")
    lines += [
        "    keys = (target * vertices + source)[source != target]",
        "    keys = torch.unique(keys)  # sorted by target, then by source",
        "    return torch.stack((keys % vertices, keys // vertices))",
    ]
    return "\n".join(lines) + "\n"


def _stand_in(described: ModelFile) -> str:
    width = described.inputs.feature_width
    return f'''\
def stand_in_features(vertices: int) -> torch.Tensor:
    """Return the random features [vertices, {width}] that training drew for a graph without any."""
    draw = numpy.random.default_rng({STAND_IN_SEED})
    return torch.from_numpy(draw.standard_normal((vertices, {width}), dtype=numpy.float32))
'''
