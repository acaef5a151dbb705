"""Options: on the command line, in ``run.yaml`` and in Python; unknown, mistyped, out of range, at odds."""

from __future__ import annotations

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


# ---- command line


@command(OPTIONS, 2, "model_options: dropout is an option of its own")
def model_options_collide(w: Workplace):
    """An option of the model's that has a flag."""
    return w.train(None, "--set", "model_options={dropout: 0.1}")


@command(OPTIONS, 2, "model_options: in_channels is an option of its own")
def model_options_width(w: Workplace):
    """A width that follows the data."""
    return w.train(None, "--set", "model_options={in_channels: 3}")


@command(OPTIONS, 2, "data_options: symmetrize is an option of its own")
def data_options_collide(w: Workplace):
    """An option of the data's that has a flag."""
    return w.train(None, "--set", "data_options={symmetrize: true}")


@command(OPTIONS, 2, "device must be 'cpu', 'cuda', 'cuda:N' or 'auto'; got 'cpu:1'")
def numbered_cpu(w: Workplace):
    """A core as a device."""
    return w.train(None, "--device", "cpu:1")


@command(OPTIONS, 4, "the model's weights with gradients", "are free")
def huge_model(w: Workplace):
    """A model larger than memory."""
    return w.train(None, "--hidden", 100_000, "--layers", 3, "--fanouts", "3,3,3")


@command(OPTIONS, 2, "--layers: num_layers must be", "1000")
def many_layers(w: Workplace):
    """More layers than any model has."""
    return w.train(None, "--set", "num_layers=2000000000")


@command(OPTIONS, 2, "--workers: workers must be", "1024")
def many_workers(w: Workplace):
    """More threads than any machine has."""
    return w.train(None, "--workers", 100_000)


# ---- run.yaml


@command(YAML, 2, "nowhere.yaml cannot be read: No such file")
def missing_yaml(w: Workplace):
    """A file that does not exist."""
    return "train", "--config", w.path("nowhere.yaml")


@command(YAML, 2, "cannot be read: Is a directory")
def yaml_folder(w: Workplace):
    """A folder."""
    return "train", "--config", w.folder


@command(YAML, 2, "run.yaml:3:1: not valid YAML")
def yaml_syntax(w: Workplace):
    """A bracket that is never closed."""
    return w.config("epochs: 3\nfanouts: [5, 5\n")


@command(YAML, 2, "run.yaml:2:1: not valid YAML", "'\\t'")
def yaml_tab(w: Workplace):
    """A tab for indentation."""
    return w.config("epochs: 3\n\tlr: 0.1\n")


@command(YAML, 2, "run.yaml:1:9: ", "010 can be read as several numbers")
def yaml_octal(w: Workplace):
    """A number with leading zeros."""
    return w.config("epochs: 010\n")


@command(YAML, 2, "run.yaml:1:13: ", "1:30 can be read as several numbers")
def yaml_base_60(w: Workplace):
    """A number with colons."""
    return w.config("batch_size: 1:30\n")


@command(YAML, 2, "run.yaml:1: epochs must be a number; got True")
def yaml_true(w: Workplace):
    """`true` as a number."""
    return w.config("epochs: true\n")


@command(YAML, 2, "run.yaml:1:14: not valid YAML: values cannot refer to others")
def yaml_alias(w: Workplace):
    """A value that refers to itself."""
    return w.config("fanouts: &a [*a]\n")


@command(YAML, 2, "norm stands there twice")
def yaml_nested_twice(w: Workplace):
    """A nested option twice."""
    return w.config("model_options: {norm: batch, norm: layer}\n")


@command(YAML, 2, "a mapping of options is needed", "it holds a list")
def yaml_list(w: Workplace):
    """A list instead of options."""
    return w.config("- epochs\n- lr\n")


@command(YAML, 2, "run.yaml:2: there is no option 'batchsize'; did you mean 'batch_size'?")
def yaml_typo(w: Workplace):
    """An option mistyped."""
    return w.config("epochs: 3\nbatchsize: 64\n")


@command(YAML, 2, "run.yaml:3: the option 'lr' stands there twice", "run.yaml:1")
def yaml_twice(w: Workplace):
    """An option twice."""
    return w.config("lr: 0.1\nepochs: 3\nlr: 0.2\n")


@command(YAML, 2, "run.yaml:1: epochs must be a valid integer", "got 'many'")
def yaml_type(w: Workplace):
    """A value of another type."""
    return w.config("epochs: many\n")


@command(YAML, 2, "run.yaml:2: dropout must be less than 1; got 1.5")
def yaml_range(w: Workplace):
    """A value out of range."""
    return w.config("epochs: 1\ndropout: 1.5\n")


@command(YAML, 2, "run.yaml:1: lr must be", "got nan")
def yaml_nan(w: Workplace):
    """A learning rate that is not finite."""
    return w.config("lr: .nan\n")


@command(YAML, 2, "run.yaml:1:5: not valid YAML", "python/object")
def yaml_object(w: Workplace):
    """A Python object."""
    return w.config("lr: !!python/object:os.system {}\n")


@command(YAML, 2, "run.yaml:1: there is no option 'zebra'", "known are")
def yaml_nested(w: Workplace):
    """A section instead of flat options."""
    return w.config("zebra:\n  epochs: 3\n")


# ---- options


@command(OPTIONS, 2, "No such command 'trian'", "Did you mean 'train'?")
def mistyped_command(w: Workplace):
    """A command mistyped."""
    return ("trian",)


@command(OPTIONS, 2, "No such option: --epoch", "--epochs")
def mistyped_flag(w: Workplace):
    """A flag mistyped."""
    return w.train(None, "--epoch", 3)


@command(OPTIONS, 2, "--epochs", "valid integer")
def text_for_number(w: Workplace):
    """Text for a number."""
    return w.train(None, "--epochs", "many")


@command(OPTIONS, 2, "--epochs: epochs must be greater than or equal to 1; got 0")
def zero_epochs(w: Workplace):
    """No epochs."""
    return w.train(None, "--epochs", 0)


@command(OPTIONS, 2, "--fanouts: fanouts must be whole numbers with commas", "'5;5'")
def fanouts_syntax(w: Workplace):
    """Fanouts that are not numbers with commas."""
    return w.train(None, "--fanouts", "5;5")


@command(OPTIONS, 2, "--fanouts: fanouts must be entry 1", "greater than or equal to -1")
def fanout_range(w: Workplace):
    """A fanout below -1."""
    return w.train(None, "--fanouts", "5,-2")


@command(OPTIONS, 2, "fanouts must have one entry per layer of the model (3)", "got 2")
def fanouts_for_layers(w: Workplace):
    """Fanouts for another number of layers."""
    return w.train(None, "--layers", 3)


@command(OPTIONS, 2, "--set needs OPTION=VALUE", "'clip'")
def set_without_value(w: Workplace):
    """`--set` without a value."""
    return w.train(None, "--set", "clip")


@command(OPTIONS, 2, "--set: there is no option 'weight_decoy'; did you mean 'weight_decay'?")
def set_unknown(w: Workplace):
    """`--set` of an unknown option."""
    return w.train(None, "--set", "weight_decoy=1")


@command(OPTIONS, 2, "--mode: mode must be 'sampled', 'full' or 'auto'; got 'ful'")
def unknown_mode(w: Workplace):
    """An unknown mode."""
    return w.train(None, "--mode", "ful")


@command(OPTIONS, 2, "optimizer must be one of", "got 'adamm'", "Did you mean 'adam'")
def unknown_optimizer(w: Workplace):
    """An unknown optimizer."""
    return w.train(None, "--optimizer", "adamm")


@command(OPTIONS, 2, "scheduler must be one of", "got 'cosin'", "Did you mean 'cosine'?")
def unknown_scheduler(w: Workplace):
    """An unknown scheduler."""
    return w.train(None, "--scheduler", "cosin")


@command(OPTIONS, 2, "metrics: a single-label task has accuracy", "got 'acuracy'", "Did you mean 'accuracy'?")
def unknown_metric(w: Workplace):
    """An unknown metric."""
    return w.train(None, "--set", "metrics=[acuracy]")


@command(OPTIONS, 2, "monitor must be one of accuracy, f1_macro, loss; got 'auroc'", "metrics")
def unknown_monitor(w: Workplace):
    """A monitor that is not computed."""
    return w.train(None, "--set", "monitor=auroc")


@command(OPTIONS, 2, "patience=3 counts evaluations, but eval_every=0")
def patience_without_evaluations(w: Workplace):
    """Early stopping without evaluations."""
    return w.train(None, "--patience", 3, "--eval-every", 0)


@command(OPTIONS, 2, "resume=True continues the run", "choose one")
def resume_and_overwrite(w: Workplace):
    """Resume and overwrite at once."""
    return "train", "--resume", "--overwrite", "--out", w.run()


@command(OPTIONS, 2, "eval_fanouts must have one entry per hop", "[5]")
def eval_fanouts(w: Workplace):
    """Evaluation fanouts of another depth."""
    return w.train(None, "--set", "eval_fanouts=[5]")


@command(OPTIONS, 2, "--device: device must be 'cpu', 'cuda'", "got 'gpu'")
def unknown_device(w: Workplace):
    """A device that torch does not know."""
    return w.train(None, "--device", "gpu")


@command(OPTIONS, 2, "device='cuda:99' needs a CUDA device that is not here", "use device='cpu'")
def missing_gpu(w: Workplace):
    """A GPU that is not there."""
    return w.train(None, "--device", "cuda:99")


@command(OPTIONS, 2, "an .npz file takes no option 'mmap'", "split_index")
def option_for_other_data(w: Workplace):
    """An option that a kind of data does not take."""
    return w.train(w.npz(), "--set", "data_options={mmap: true}")


@command(OPTIONS, 2, "split_index must be in [0, 0)", "got 3")
def unknown_stored_split(w: Workplace):
    """A stored split that is not there."""
    return w.train(w.npz(), "--set", "data_options={split_index: 3}")


@command(OPTIONS, 2, "--out must end in .csv, .npz, .parquet", "predictions.xlsx")
def unknown_output(w: Workplace):
    """Predictions into an unknown format."""
    return "predict", "--run", w.run(), "--out", w.path("predictions.xlsx")


@command(OPTIONS, 2, "--nodes and --split both choose the nodes")
def nodes_and_split(w: Workplace):
    """Nodes chosen in two ways."""
    return w.predict("--nodes", w.file("ids.txt", "3\n"), "--split", "test")


@call(OPTIONS, ConfigError, "'epoch' is not an option", "Did you mean 'epochs'?")
def config_typo(w: Workplace):
    """An option of `TrainConfig` mistyped."""
    TrainConfig.from_dict({"epoch": 3})


@call(OPTIONS, ConfigError, "checkpoint_every_steps=5 needs a folder", "give out_dir")
def checkpoints_without_folder(w: Workplace):
    """Checkpoints without a folder."""
    TrainConfig(checkpoint_every_steps=5)


# ---- models and widths


@command(WIDTHS, 2, "no model is called 'saeg'; choose one of gcn, sage", "Did you mean 'sage'?")
def unknown_model(w: Workplace):
    """An unknown model."""
    return w.train(None, "--model", "saeg")


@command(WIDTHS, 2, "model 'gcn' has no option 'heads'", "It takes")
def option_of_other_model(w: Workplace):
    """An option that the model does not have."""
    return w.train(None, "--model", "gcn", "--heads", 2)


@command(WIDTHS, 2, "hidden_channels must be a multiple of heads (3); got 8")
def heads_do_not_divide(w: Workplace):
    """Heads that do not divide the width."""
    return w.train(None, "--model", "gat", "--heads", 3)


@command(WIDTHS, 2, "norm must be one of None, none, batch, layer; got 'bach'")
def unknown_norm(w: Workplace):
    """An unknown normalisation."""
    return w.train(None, "--set", "model_options={norm: bach}")


@command(WIDTHS, 2, "input_dropout must be a number in [0, 1); got 'much'")
def model_option_type(w: Workplace):
    """A model option of another type."""
    return w.train(None, "--set", "model_options={input_dropout: much}")


@command(WIDTHS, 2, "--hidden: hidden_channels must be greater than or equal to 1; got 0")
def zero_width(w: Workplace):
    """A width of zero."""
    return w.train(None, "--hidden", 0)


@call(WIDTHS, DataError, "SAGEConv needs x of shape", "(in_channels=5)", "6)")
def model_for_other_features(w: Workplace):
    """A model for other features."""
    graphbraid.Trainer(nn.GraphSAGE(5, 8, 3), graph(), fanouts=(3, 3)).fit()


@call(WIDTHS, ConfigError, "the model must have one output per class (3); it has 4", "out_channels=3")
def model_for_other_classes(w: Workplace):
    """A model for other classes."""
    graphbraid.Trainer(nn.GraphSAGE(6, 8, 4), graph(), fanouts=(3, 3)).fit()


@call(WIDTHS, ConfigError, "model must be a torch.nn.Module; got str")
def model_by_name(w: Workplace):
    """A model that is no module."""
    graphbraid.Trainer("gcn", graph())


@call(WIDTHS, ConfigError, "graph must be a graphbraid.Graph; got Data", "Graph.from_pyg")
def data_for_graph(w: Workplace):
    """A `Data` where a `Graph` is needed."""
    graphbraid.Trainer(nn.GraphSAGE(6, 8, 3), graph().to_pyg())


@call(WIDTHS, DataError, "a model of 2 layers needs 2 blocks", "got 1")
def too_few_blocks(w: Workplace):
    """A model given too few blocks."""
    with NeighborLoader(graph(), [3], batch_size=4) as loader:
        batch = next(iter(loader))
        nn.GraphSAGE(6, 8, 3)(batch.x, batch.blocks)


# ---- the loader


@call(LOADER, ConfigError, "num_neighbors must be a list with a fanout per hop", "got 5")
def one_fanout(w: Workplace):
    """One number of neighbours."""
    NeighborLoader(graph(), 5)


@call(
    LOADER,
    ConfigError,
    "layout='blocks' has a block per hop",
    "fanouts must name at least one hop, such as (15, 10, 5)",
)
def no_fanouts(w: Workplace):
    """No hops."""
    NeighborLoader(graph(), [], layout="blocks")


@call(LOADER, ConfigError, "-1", "-3")
def loader_fanout_range(w: Workplace):
    """A fanout of zero neighbours below -1."""
    NeighborLoader(graph(), [5, -3])


@call(LOADER, ConfigError, "batch_size must be", "0")
def zero_batch(w: Workplace):
    """A batch of no seeds."""
    NeighborLoader(graph(), [5, 5], batch_size=0)


@call(LOADER, ConfigError, "batch_size must be a whole number", "'32'")
def text_batch(w: Workplace):
    """A batch size that is text."""
    NeighborLoader(graph(), [5, 5], batch_size="32")


@call(LOADER, ConfigError, "input_nodes must be node ids", "heterogeneous")
def typed_seeds(w: Workplace):
    """Seeds of a node type."""
    NeighborLoader(graph(), [5, 5], ("paper", [1, 2]))


@call(LOADER, ConfigError, "layout must be", "'bloks'")
def unknown_layout(w: Workplace):
    """An unknown layout."""
    NeighborLoader(graph(), [5, 5], layout="bloks")


@call(LOADER, ConfigError, "weight_attr='w'", "this one has none")
def missing_weights(w: Workplace):
    """Weights that the graph does not have."""
    NeighborLoader(graph(), [5, 5], weight_attr="w")


@call(LOADER, ConfigError, "does not support transform_sampler_output", "use PyG's loader")
def loader_with_a_hook_on_samples(w: Workplace):
    """An option of PyG's that changes batches in a way not supported."""
    NeighborLoader(graph(), [5, 5], transform_sampler_output=len)


@call(
    LOADER,
    ConfigError,
    "time_attr='time' names an attribute of a PyG Data, and a Graph has none",
    "make the loader over the Data",
)
def temporal_loader(w: Workplace):
    """Times of a graph that has none."""
    NeighborLoader(graph(), [5, 5], time_attr="time")


@call(LOADER, ConfigError, "takes no argument 'batchsize'", "Did you mean 'batch_size'?")
def loader_typo(w: Workplace):
    """An argument mistyped."""
    NeighborLoader(graph(), [5, 5], batchsize=32)


@call(LOADER, DataError, "no split 'training' (present: train, val, test)")
def loader_split(w: Workplace):
    """A split that the graph does not have."""
    NeighborLoader(graph(), [5, 5], "training")


@call(LOADER, ConfigError, "steps in [0, 6]", "steps 7 to 6")
def loader_steps(w: Workplace):
    """Steps outside the epoch."""
    NeighborLoader(graph(), [5, 5], batch_size=16).batches(0, 7)
