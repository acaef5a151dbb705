"""Plans: names and files that cannot be followed, and machines that cannot be planned for."""

import json

from tests.robustness.cases import call, command
from tests.robustness.workplace import Workplace, graph

from graphbraid.collective import Duration, Plan, Profile, StageTimes, make_plan
from graphbraid.errors import ConfigError, DataError
from graphbraid.loader import NeighborLoader

PLANS = "Plans"


def profile() -> Profile:
    second = Duration(seconds=1.0)
    return Profile(times=(StageTimes(workers=1, cpu=second, dma=second, model=second),))


command(PLANS, 2, "plan must be one of 'auto', 'cpu', 'gpu'", "Did you mean 'auto'?")(
    "A plan's name mistyped", lambda w: w.train(None, "--plan", "atuo")
)
command(PLANS, 2, "needs a device that prepares batches itself", "device='cpu'")(
    "`--plan gpu` without a GPU", lambda w: w.train(None, "--plan", "gpu")
)
command(PLANS, 2, "plan='auto'", "mode='full' has none")(
    "A plan for training on the whole graph", lambda w: w.train(None, "--plan", "auto", "--mode", "full")
)
command(PLANS, 2, "trace=", "give a plan as well")(
    "`--trace` without a plan", lambda w: w.train(None, "--trace", w.path("out.json"))
)
command(PLANS, 3, "plan.json is no plan: it is not JSON")(
    "A plan's file that is no JSON", lambda w: w.train(None, "--plan", w.file("plan.json", "split: 0.5"))
)
command(PLANS, 3, "plan.json is no plan: it has no field 'graphbraid'")(
    "Another file than a plan", lambda w: w.train(None, "--plan", w.file("plan.json", "{}"))
)
command(PLANS, 2, "8 ranks are more than a batch has seeds (batch_size=4)", "predict up to 4 ranks")(
    "More ranks to predict for than a batch has seeds",
    lambda w: ("plan", "--data", w.store(), "--ranks", "8", "--mode", "sampled", "--batch-size", "4"),
)
command(
    PLANS,
    2,
    "--ranks predicts training on the whole graph, which --fanouts is not for",
    "give --mode sampled",
)(
    "`--fanouts` for a prediction of the whole graph",
    lambda w: ("plan", "--data", w.store(), "--ranks", "8", "--fanouts", "5,5"),
)
command(PLANS, 2, "--mode is for predictions with --ranks")(
    "`--mode` for a plan without ranks", lambda w: ("plan", "--mode", "sampled")
)
command(PLANS, 3, "cannot read the profile", "No such file")(
    "A profile that is not there", lambda w: ("plan", "--profile", w.path("nowhere.json"))
)


@command(PLANS, 3, "machine.json is no sound machine: cores must be a whole number in [1, 1024]")
def machine_without_cores(w: Workplace):
    """A machine without cores."""
    profile().save(w.path("profile.json"))
    machine = w.file("machine.json", json.dumps({"graphbraid": "machine", "cores": 0}))
    return "plan", "--profile", w.path("profile.json"), "--hardware", machine


@call(PLANS, DataError, "is no sound plan: cbs: Field required")
def plan_without_buffers(w: Workplace):
    """A field of a plan missing."""
    path = w.path("plan.json")
    make_plan(profile(), 10).save(path)
    values = json.loads(path.read_text())
    del values["checksum"]
    del values["cbs"]
    path.write_text(json.dumps(values))
    Plan.load(path)


call(PLANS, ConfigError, "plan must be one of", "Did you mean 'gpu'?")(
    "A loader's plan mistyped", lambda w: NeighborLoader(graph(), [3, 3], plan="gpus")
)
call(PLANS, ConfigError, "device must be a torch device", "'gpu9'")(
    "A loader's device that torch does not know", lambda w: NeighborLoader(graph(), [3, 3], device="gpu9")
)
call(PLANS, ConfigError, "device='cuda:99' needs a CUDA device")(
    "A loader's CUDA device that is not there", lambda w: NeighborLoader(graph(), [3, 3], device="cuda:99")
)
call(PLANS, ConfigError, "num_batches must be a whole number in [1, 10000000]; got 0")(
    "An epoch of no batches", lambda w: make_plan(profile(), 0)
)
