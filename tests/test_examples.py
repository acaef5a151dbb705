"""Every example runs, and does what it says."""

import os
import re
import sys
from pathlib import Path

import pytest
from tests import warm

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.append(str(EXAMPLES.parent / "scripts" / "site"))
import outputs  # noqa: E402

# What the output must match, and the least test accuracy; chance is 1 in 8, in the CSV example 1 in 3.
EXPECTED = {
    "pyg_by_one_import.py": (r"epoch 4: loss", 0.6),
    "own_training_loop.py": (r"epoch 4: validation accuracy", 0.6),
    "resume_after_kill.py": (
        r"killed by signal 9 after \d+ of \d+ steps\nresumed: .* to the bit: True",
        None,
    ),
    "full_graph.py": (r"hoist: features aggregated once(.|\n)*epoch 59: loss", 0.6),
    "node_types.py": (r"mean over author writes paper(.|\n)*epoch 29: loss", 0.7),
    "predict_all_nodes.py": (r"\(5000, 8\) probabilities", 0.6),
    "layerwise_inference.py": (r"epoch 4: loss(.|\n)*val accuracy", 0.7),
    "lightning_sage.py": (r"predicted 3490 nodes, accuracy 0\.[6-9]", 0.6),
    "imbalanced_classes.py": (
        r"12\.\d% of the training .* (4[5-9]|5[0-5])\.\d% of those drawn\n.*\nbalanced: recall 0\.[789]",
        None,
    ),
    "link_prediction.py": (r"AUC of later links: 0\.[789]\d*\namong all nodes: filtered MRR 0\.\d+", None),
    "nearest_items.py": (r"recall of the 10 likeliest films: (0\.9|1\.0)", None),
    "service.py": (
        r"400 requests answered by the models \[1(, 2)?\], none dropped; last: 2\n"
        r"as Trainer.predict says: (0\.99\d|1\.000); new nodes as their originals: (0\.99\d|1\.000)\n"
        r"an unknown id: 404; damaged weights: 422",
        None,
    ),
    "tune_optuna.py": (r"\d trials ended, \d were pruned\nbest validation accuracy 0\.[4-9]", None),
    "tune_ray.py": (r"6 trials, 0 failed\nbest validation accuracy 0\.[3-9]", None),
    "database.py": (
        r"3 types and 4 relations(.|\n)*epoch 4: loss 0\.[34]",
        0.75,
    ),
    "graph_classification.py": (r"test accuracy 1\.000(.|\n)*graphs 0 to 9: \[0, 1, 0, 1", None),
    "dataset_from_csv.py": (r"400 people, \d+ friendships, clubs: chess, rowing, theatre", 0.7),
}


def test_every_example_is_tested_and_listed():
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == set(EXPECTED)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}`" in listed for name in files)


QUICK = {"pyg_by_one_import.py"}
NEEDS = {
    "nearest_items.py": "usearch",
    "service.py": "fastapi",
    "tune_optuna.py": "optuna",
    "tune_ray.py": "ray",
}
"""Packages of examples that the environment may lack."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in sorted(EXPECTED)],
)
def test_example_runs(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs the package {NEEDS[name]}")
    pattern, least_accuracy = EXPECTED[name]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    done = warm.run([EXAMPLES / name], cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    doubt = "the machine's rates are doubtful"  # other tests run beside this one
    told = done.stderr.splitlines()
    assert (
        name == "tune_ray.py" or [line for line in told if not line.startswith(doubt)] == []
    )  # Ray tells more
    assert re.search(pattern, done.stdout), done.stdout
    if least_accuracy is not None:
        accuracy = re.search(r"test accuracy (\d\.\d+)", done.stdout)
        assert accuracy, done.stdout
        assert float(accuracy.group(1)) > least_accuracy, done.stdout
    assert not list(tmp_path.iterdir()), "an example left files behind"
    assert outputs.picture(done.stdout), "the gallery shows a picture of each"
    outputs.keep(EXAMPLES / name, done.stdout)
