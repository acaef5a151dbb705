"""What benchmarks.gpu.sampling compares and makes."""

import importlib

import pytest
import torch
from benchmarks.gpu import sampling as gpu_sampling

from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline


@pytest.fixture(scope="module")
def gpu_pipeline(device):
    module = importlib.import_module("graphbraid.sampling.triton")
    return lambda csc, config, x, **options: module.TritonPipeline(csc, config, x, device=device, **options)


@pytest.mark.slow
def test_equal_batches_pass_and_others_end_the_benchmark(gpu_pipeline):
    graph = gpu_sampling.skewed_graph(100, 700, 4)
    graph.validate()
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=8, shuffle=True)
    config = SamplerConfig(fanouts=(3, 2))
    cpu = make_pipeline(graph.csc, config, graph.x, num_threads=1, depth=1)
    gpu_sampling.check_bits(cpu, gpu_pipeline(graph.csc, config, graph.x), schedule, 2)
    x = graph.x.clone()
    x[schedule.seeds_of(0, 1)[0]] += 1
    with pytest.raises(SystemExit, match="batch 1 of the device is not the CPU's"):
        gpu_sampling.check_bits(cpu, gpu_pipeline(graph.csc, config, x), schedule, 2)


def test_without_a_device_the_benchmark_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_sampling"])
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        gpu_sampling.main()
