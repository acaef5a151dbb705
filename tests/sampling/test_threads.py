"""Threads that cannot be had, processes that were forked, and pipelines given what does not fit."""

import textwrap
import time
from collections.abc import Callable

import pytest
import torch
from tests import warm
from tests.extras import in_threads, once_undisturbed
from tests.kernels import needs_kernels

from graphbraid import Graph, native
from graphbraid.errors import ConfigError
from graphbraid.loader import NeighborLoader
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline

pytestmark = needs_kernels


def ring(num_nodes: int = 50) -> Graph:
    nodes = torch.arange(num_nodes)
    return Graph.from_edge_index(torch.stack([nodes, nodes.roll(1)]), x=torch.rand(num_nodes, 3))


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """What code prints in a process that has imported and no more; it must end by itself and well."""

    def run(code: str) -> str:
        done = warm.run(["-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code)])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


PRELUDE = """
    import os, resource, sys, torch, warnings
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # PyG scripts some of its classes
    from graphbraid import Graph, ops
    from graphbraid.errors import ResourceError
    from graphbraid.loader import NeighborLoader
    nodes = torch.arange(50)
    graph = Graph.from_edge_index(torch.stack([nodes, nodes.roll(1)]), x=torch.rand(50, 3))
    # A process that may have so many threads: by address space, as limits of processes do not hold root.
    def limit(more_bytes):
        now = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + more_bytes,) * 2)
    def in_child(work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except BaseException as error:
                print(type(error).__name__, error)
                sys.stdout.flush()
                os._exit(3)
            sys.stdout.flush()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
def test_workers_beyond_the_limits_of_the_system_are_an_error(run_python):
    said = run_python("""
        list(NeighborLoader(graph, [2], seed=0))
        limit(100 << 20)
        try:
            list(NeighborLoader(graph, [2], seed=0, num_workers=900))
        except ResourceError as error:
            print(error)
        print(len(list(NeighborLoader(graph, [2], seed=0, batch_size=10))))
    """)
    assert "of 900 sampling threads" in said
    assert said.splitlines()[-1] == "5"


def test_operators_use_the_threads_that_can_be_had(run_python):
    said = run_python("""
        x, ids = torch.rand(400_000, 8), torch.arange(400_000)
        torch.set_num_threads(1)
        alone = ops.gather_rows(x, ids)
        from graphbraid import native
        limit(60 << 20)
        torch.set_num_threads(500)
        print(native.kernels().gather_rows(x.view(torch.uint8), ids, alone.view(torch.uint8)))
        torch.set_num_threads(1)
        print(torch.equal(alone, x))
    """)
    assert said.split() == ["None", "True"]


def test_more_threads_than_any_machine_has_are_refused():
    with pytest.raises(ConfigError, match="must be a whole number in"):
        make_pipeline(ring(), SamplerConfig(fanouts=(2,)), num_threads=100_000, depth=2)


@pytest.mark.slow
def test_a_used_loader_in_a_forked_process_works_or_raises_at_once(run_python):
    said = run_python("""
        loader = NeighborLoader(graph, [2], seed=0, batch_size=10)
        wanted = [batch.n_id.tolist() for batch in loader.batches(0)]
        begun = loader.batches(0)
        next(begun)
        def go_on():
            next(begun)
        def anew():
            print([batch.n_id.tolist() for batch in loader.batches(0)] == wanted)
        def drop():
            global loader, begun
            begun = None
            loader.close()
            del loader
            print("dropped")
        print(in_child(go_on), in_child(anew), in_child(drop))
        print(len(list(begun)))
    """).splitlines()
    assert said[0].startswith("RuntimeError") or said[0].startswith("ResourceError")
    assert "forked" in said[0]
    assert said[1:] == ["True", "dropped", "3 0 0", "4"]


def test_operators_in_a_forked_process_work_on_one_thread(run_python):
    said = run_python("""
        x = torch.rand(400_000, 8)
        ids = torch.arange(400_000)
        out = torch.empty_like(x)
        from graphbraid import native
        def gather():
            native.kernels().gather_rows(x.view(torch.uint8), ids, out.view(torch.uint8))
        torch.set_num_threads(4)
        gather()
        print(in_child(gather))
    """)
    assert said.split() == ["0"]


SOUND = {
    "indptr": torch.tensor([0, 1, 2]),
    "indices": torch.tensor([1, 0], dtype=torch.int32),
    "weight": None,
    "x": None,
    "fanouts": [2],
    "replace": False,
    "blocks": False,
    "keep_edges": True,
    "num_threads": 1,
    "depth": 2,
    "refill": 1,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"indptr": torch.tensor([0, 1, 3])}, "indptr must run from 0 to 2; it runs from 0 to 3"),
        ({"indptr": torch.empty(0, dtype=torch.int64)}, "indptr"),
        ({"indices": torch.tensor([[1, 0]])}, "indices must be 1-dimensional; got 2 dimensions"),
        ({"weight": torch.ones(3)}, "weight must have length 2; got 3"),
        ({"x": torch.ones(3, 2)}, "x must have length 2; got 3"),
        ({"x": torch.ones(2)}, "x must be 2-dimensional; got 1 dimensions"),
        ({"fanouts": [-2]}, "a fanout must lie in"),
        ({"num_threads": 0}, "num_threads must lie in"),
        ({"num_threads": 100_000}, "num_threads must lie in"),
        ({"depth": 0}, "depth must lie in"),
        ({"refill": 3}, r"refill must lie in \[0, 2\]; got 3"),
    ],
)
def test_the_compiled_pipeline_refuses_what_does_not_fit(wrong, message):
    native.kernels().Pipeline(**SOUND)
    with pytest.raises(ValueError, match=message):
        native.kernels().Pipeline(**{**SOUND, **wrong})


def test_the_compiled_pipeline_refuses_another_dtype():
    with pytest.raises(TypeError, match="indices must be int32 or int64; got float32"):
        native.kernels().Pipeline(**{**SOUND, "indices": torch.tensor([1.0, 0.0])})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": torch.tensor([0, 2])}, r"seeds must be nodes in \[0, 2\); seeds\[1\] is 2"),
        ({"seeds": torch.tensor([-1, 0])}, r"seeds\[0\] is -1"),
        ({"batch_size": 0}, "batch_size must lie in"),
        ({"last_step": 3}, r"last_step must lie in \[0, 2\]; got 3"),
        ({"first_step": -1}, "first_step must lie in"),
        ({"first_step": 2, "last_step": 1}, r"first_step must lie in \[0, 1\]; got 2"),
    ],
)
def test_a_run_of_the_compiled_pipeline_refuses_what_does_not_fit(wrong, message):
    sound = {"batch_size": 1, "shuffle": False, "seed": 0, "epoch": 0, "first_step": 0, "last_step": 2}
    pipeline = native.kernels().Pipeline(**SOUND)
    run = {"pipeline": pipeline, "seeds": torch.tensor([0, 1]), **sound}
    native.kernels().Run(**run)
    with pytest.raises(ValueError, match=message):
        native.kernels().Run(**{**run, **wrong})


def test_one_schedule_from_two_threads_gives_each_its_own_batches():
    loader = NeighborLoader(ring(), [2, 2], seed=0, batch_size=1, num_workers=2)

    def read() -> list[list[int]]:
        return [batch.n_id.tolist() for batch in loader.batches(0)]

    wanted = read()
    assert in_threads(*[read] * 4) == [wanted] * 4


def test_a_second_worker_costs_small_batches_no_processor_time():
    """Idle threads helped with batches of a fraction of a millisecond, at 1.7 times the time of one alone."""
    draw = torch.Generator().manual_seed(0)
    graph = Graph.from_edge_index(torch.randint(100_000, (2, 1_000_000), generator=draw), 100_000)
    options = {"input_nodes": torch.arange(100 * 256), "batch_size": 256, "seed": 0}

    def seconds(workers: int) -> float:
        with NeighborLoader(graph, [10, 5], num_workers=workers, **options) as loader:
            taken = []
            for _ in range(4):
                started = time.process_time()
                assert sum(1 for _ in loader) == 100
                taken.append(time.process_time() - started)
        return min(taken)

    def alike() -> None:
        assert seconds(2) < 1.35 * seconds(1)

    once_undisturbed(alike)


def test_seeds_of_another_graph_are_refused():
    csc = ring().csc
    schedule = SeedSchedule(seeds=torch.tensor([3, 50]), batch_size=1)
    pipeline = make_pipeline(Graph(csc=csc), SamplerConfig(fanouts=(2,)), num_threads=1, depth=2)
    with pytest.raises(ValueError, match=r"seeds must be nodes in \[0, 50\)"):
        next(pipeline.run(schedule, 0, 0, 2))
