"""Options: on the command line, in ``run.yaml`` and in Python; unknown, mistyped, out of range, at odds."""

from typing import Any

from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

import graphbraid
from graphbraid import TrainConfig, nn
from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import NeighborLoader

YAML = "`run.yaml`"
OPTIONS = "Options"
WIDTHS = "Models and widths"
LOADER = "`NeighborLoader`"


def _train(what: str, options: str, *says: str) -> None:
    command(OPTIONS, 2, *says)(what, lambda w: w.train(None, *options.split()))


def _yaml(what: str, text: str, *says: str) -> None:
    command(YAML, 2, *says)(what, lambda w: w.config(text))


def _loader(what: str, *says: str, **options: Any) -> None:
    call(LOADER, ConfigError, *says)(what, lambda w: NeighborLoader(graph(), [5, 5], **options))


# ---- command line


command(OPTIONS, 2, "model_options: dropout is an option of its own")(
    "An option of the model's that has a flag",
    lambda w: w.train(None, "--set", "model_options={dropout: 0.1}"),
)
command(OPTIONS, 2, "model_options: in_channels is an option of its own")(
    "A width that follows the data", lambda w: w.train(None, "--set", "model_options={in_channels: 3}")
)
command(OPTIONS, 2, "data_options: symmetrize is an option of its own")(
    "An option of the data's that has a flag",
    lambda w: w.train(None, "--set", "data_options={symmetrize: true}"),
)
_train(
    "A core as a device", "--device cpu:1", "device must be 'cpu', 'cuda', 'cuda:N' or 'auto'; got 'cpu:1'"
)
command(OPTIONS, 4, "the model's weights with gradients", "are free")(
    "A model larger than memory",
    lambda w: w.train(None, "--hidden", 100_000, "--layers", 3, "--fanouts", "3,3,3"),
)
_train(
    "More layers than any model has", "--set num_layers=2000000000", "--layers: num_layers must be", "1000"
)
_train("More threads than any machine has", "--workers 100000", "--workers: workers must be", "1024")


# ---- run.yaml


command(YAML, 2, "nowhere.yaml cannot be read: No such file")(
    "A file that does not exist", lambda w: ("train", "--config", w.path("nowhere.yaml"))
)
command(YAML, 2, "cannot be read: Is a directory")("A folder", lambda w: ("train", "--config", w.folder))
_yaml("A bracket that is never closed", "epochs: 3\nfanouts: [5, 5\n", "run.yaml:3:1: not valid YAML")
_yaml("A tab for indentation", "epochs: 3\n\tlr: 0.1\n", "run.yaml:2:1: not valid YAML", "'\\t'")
_yaml("A number with leading zeros", "epochs: 010\n", "run.yaml:1:9: ", "010 can be read as several numbers")
_yaml("A number with colons", "batch_size: 1:30\n", "run.yaml:1:13: ", "1:30 can be read as several numbers")
_yaml("`true` as a number", "epochs: true\n", "run.yaml:1: epochs must be a number; got True")
command(YAML, 2, "run.yaml:1:14: not valid YAML: values cannot refer to others")(
    "A value that refers to itself", lambda w: w.config("fanouts: &a [*a]\n")
)
_yaml("A nested option twice", "model_options: {norm: batch, norm: layer}\n", "norm stands there twice")
_yaml("A list instead of options", "- epochs\n- lr\n", "a mapping of options is needed", "it holds a list")
command(YAML, 2, "run.yaml:2: there is no option 'batchsize'; did you mean 'batch_size'?")(
    "An option mistyped", lambda w: w.config("epochs: 3\nbatchsize: 64\n")
)
command(YAML, 2, "run.yaml:3:1", "lr stands there twice")(
    "An option twice", lambda w: w.config("lr: 0.1\nepochs: 3\nlr: 0.2\n")
)
_yaml("A value of another type", "epochs: many\n", "run.yaml:1: epochs must be a valid integer", "got 'many'")
_yaml("A value out of range", "epochs: 1\ndropout: 1.5\n", "run.yaml:2: dropout must be less than 1; got 1.5")
_yaml("A learning rate that is not finite", "lr: .nan\n", "run.yaml:1: lr must be", "got nan")
_yaml(
    "A Python object", "lr: !!python/object:os.system {}\n", "run.yaml:1:5: not valid YAML", "python/object"
)
command(YAML, 2, "run.yaml:1: there is no option 'zebra'", "known are")(
    "A section instead of flat options", lambda w: w.config("zebra:\n  epochs: 3\n")
)


# ---- options


command(OPTIONS, 2, "No such command 'trian'", "Did you mean 'train'?")(
    "A command mistyped", lambda w: ("trian",)
)
_train("A flag mistyped", "--epoch 3", "No such option: --epoch", "--epochs")
_train("Text for a number", "--epochs many", "--epochs", "valid integer")
_train("No epochs", "--epochs 0", "--epochs: epochs must be greater than or equal to 1; got 0")
command(OPTIONS, 2, "--fanouts: fanouts must be whole numbers with commas", "'5;5'")(
    "Fanouts that are not numbers with commas", lambda w: w.train(None, "--fanouts", "5;5")
)
_train(
    "A fanout below -1", "--fanouts 5,-2", "--fanouts: fanouts must be entry 1", "greater than or equal to -1"
)
command(OPTIONS, 2, "fanouts must have one entry per layer of the model (3)", "got 2")(
    "Fanouts for another number of layers", lambda w: w.train(None, "--layers", 3)
)
_train("`--set` without a value", "--set clip", "--set needs OPTION=VALUE", "'clip'")
command(OPTIONS, 2, "--set: there is no option 'weight_decoy'; did you mean 'weight_decay'?")(
    "`--set` of an unknown option", lambda w: w.train(None, "--set", "weight_decoy=1")
)
_train("An unknown mode", "--mode ful", "--mode: mode must be 'sampled', 'full' or 'auto'; got 'ful'")
command(OPTIONS, 2, "optimizer must be one of", "got 'adamm'", "Did you mean 'adam'")(
    "An unknown optimizer", lambda w: w.train(None, "--optimizer", "adamm")
)
command(OPTIONS, 2, "scheduler must be one of", "got 'cosin'", "Did you mean 'cosine'?")(
    "An unknown scheduler", lambda w: w.train(None, "--scheduler", "cosin")
)
command(OPTIONS, 2, "metrics: a single-label task has accuracy", "got 'acuracy'", "Did you mean 'accuracy'?")(
    "An unknown metric", lambda w: w.train(None, "--set", "metrics=[acuracy]")
)
command(OPTIONS, 2, "monitor must be one of accuracy, f1_macro, loss; got 'auroc'", "metrics")(
    "A monitor that is not computed", lambda w: w.train(None, "--set", "monitor=auroc")
)
command(OPTIONS, 2, "patience=3 counts evaluations, but eval_every=0")(
    "Early stopping without evaluations", lambda w: w.train(None, "--patience", 3, "--eval-every", 0)
)
command(OPTIONS, 2, "resume=True continues the run", "choose one")(
    "Resume and overwrite at once", lambda w: ("train", "--resume", "--overwrite", "--out", w.run())
)
command(OPTIONS, 2, "eval_fanouts must have one entry per hop", "[5]")(
    "Evaluation fanouts of another depth", lambda w: w.train(None, "--set", "eval_fanouts=[5]")
)
_train(
    "A device that torch does not know", "--device gpu", "--device: device must be 'cpu', 'cuda'", "got 'gpu'"
)
command(OPTIONS, 2, "device='cuda:99' needs a CUDA device that is not here", "use device='cpu'")(
    "A GPU that is not there", lambda w: w.train(None, "--device", "cuda:99")
)
command(OPTIONS, 2, "an .npz file takes no option 'mmap'", "split_index")(
    "An option that a kind of data does not take",
    lambda w: w.train(w.npz(), "--set", "data_options={mmap: true}"),
)
command(OPTIONS, 2, "split_index must be in [0, 0)", "got 3")(
    "A stored split that is not there", lambda w: w.train(w.npz(), "--set", "data_options={split_index: 3}")
)
command(OPTIONS, 2, "--out must end in .csv, .npz, .parquet", "predictions.xlsx")(
    "Predictions into an unknown format",
    lambda w: ("predict", "--run", w.run(), "--out", w.path("predictions.xlsx")),
)
command(OPTIONS, 2, "--nodes and --split both choose the nodes")(
    "Nodes chosen in two ways", lambda w: w.predict("--nodes", w.file("ids.txt", "3\n"), "--split", "test")
)
call(OPTIONS, ConfigError, "'epoch' is not an option", "Did you mean 'epochs'?")(
    "An option of `TrainConfig` mistyped", lambda w: TrainConfig.from_dict({"epoch": 3})
)
call(OPTIONS, ConfigError, "checkpoint_every_steps=5 needs a folder", "give out_dir")(
    "Checkpoints without a folder", lambda w: TrainConfig(checkpoint_every_steps=5)
)


# ---- models and widths


command(WIDTHS, 2, "no model is called 'saeg'; choose one of gcn, sage", "Did you mean 'sage'?")(
    "An unknown model", lambda w: w.train(None, "--model", "saeg")
)
command(WIDTHS, 2, "model 'gcn' has no option 'heads'", "It takes")(
    "An option that the model does not have", lambda w: w.train(None, "--model", "gcn", "--heads", 2)
)
command(WIDTHS, 2, "hidden_channels must be a multiple of heads (3); got 8")(
    "Heads that do not divide the width", lambda w: w.train(None, "--model", "gat", "--heads", 3)
)
command(WIDTHS, 2, "norm must be one of None, none, batch, layer; got 'bach'")(
    "An unknown normalisation", lambda w: w.train(None, "--set", "model_options={norm: bach}")
)
command(WIDTHS, 2, "input_dropout must be a number in [0, 1); got 'much'")(
    "A model option of another type", lambda w: w.train(None, "--set", "model_options={input_dropout: much}")
)
command(WIDTHS, 2, "--hidden: hidden_channels must be greater than or equal to 1; got 0")(
    "A width of zero", lambda w: w.train(None, "--hidden", 0)
)
call(WIDTHS, DataError, "SAGEConv needs x of shape", "(in_channels=5)", "6)")(
    "A model for other features",
    lambda w: graphbraid.Trainer(nn.GraphSAGE(5, 8, 3), graph(), fanouts=(3, 3)).fit(),
)
call(WIDTHS, ConfigError, "the model must have one output per class (3); it has 4", "out_channels=3")(
    "A model for other classes",
    lambda w: graphbraid.Trainer(nn.GraphSAGE(6, 8, 4), graph(), fanouts=(3, 3)).fit(),
)
call(WIDTHS, ConfigError, "model must be a torch.nn.Module; got str")(
    "A model that is no module", lambda w: graphbraid.Trainer("gcn", graph())
)
call(WIDTHS, ConfigError, "graph must be a graphbraid.Graph; got Data", "Graph.from_pyg")(
    "A `Data` where a `Graph` is needed",
    lambda w: graphbraid.Trainer(nn.GraphSAGE(6, 8, 3), graph().to_pyg()),
)


@call(WIDTHS, DataError, "a model of 2 layers needs 2 blocks", "got 1")
def too_few_blocks(w: Workplace):
    """A model given too few blocks."""
    with NeighborLoader(graph(), [3], batch_size=4) as loader:
        batch = next(iter(loader))
        nn.GraphSAGE(6, 8, 3)(batch.x, batch.blocks)


# ---- the loader


call(LOADER, ConfigError, "num_neighbors must be a list with a fanout per hop", "got 5")(
    "One number of neighbours", lambda w: NeighborLoader(graph(), 5)
)
call(
    LOADER,
    ConfigError,
    "layout='blocks' has a block per hop",
    "fanouts must name at least one hop, such as (15, 10, 5)",
)("No hops", lambda w: NeighborLoader(graph(), [], layout="blocks"))
call(LOADER, ConfigError, "-1", "-3")(
    "A fanout of zero neighbours below -1", lambda w: NeighborLoader(graph(), [5, -3])
)
_loader("A batch of no seeds", "batch_size must be", "0", batch_size=0)
_loader("A batch size that is text", "batch_size must be a whole number", "'32'", batch_size="32")
call(LOADER, ConfigError, "input_nodes must be node ids", "heterogeneous")(
    "Seeds of a node type", lambda w: NeighborLoader(graph(), [5, 5], ("paper", [1, 2]))
)
_loader("An unknown layout", "layout must be", "'bloks'", layout="bloks")
_loader("Weights that the graph does not have", "weight_attr='w'", "this one has none", weight_attr="w")
call(LOADER, ConfigError, "does not support transform_sampler_output", "use PyG's loader")(
    "An option of PyG's that changes batches in a way not supported",
    lambda w: NeighborLoader(graph(), [5, 5], transform_sampler_output=len),
)
call(
    LOADER,
    ConfigError,
    "time_attr='time' names an attribute of a PyG Data, and a Graph has none",
    "make the loader over the Data",
)("Times of a graph that has none", lambda w: NeighborLoader(graph(), [5, 5], time_attr="time"))
_loader("An argument mistyped", "takes no argument 'batchsize'", "Did you mean 'batch_size'?", batchsize=32)
call(LOADER, DataError, "no split 'training' (present: train, val, test)")(
    "A split that the graph does not have", lambda w: NeighborLoader(graph(), [5, 5], "training")
)
call(LOADER, ConfigError, "steps in [0, 6]", "steps 7 to 6")(
    "Steps outside the epoch", lambda w: NeighborLoader(graph(), [5, 5], batch_size=16).batches(0, 7)
)
