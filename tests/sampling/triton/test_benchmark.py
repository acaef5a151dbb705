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
    cpu = make_pipeline(graph, config, [graph.x], num_threads=1, depth=1)
    gpu_sampling.check_bits(cpu, gpu_pipeline(graph.csc, config, graph.x), schedule, 2)
    x = graph.x.clone()
    x[schedule.seeds_of(0, 1)[0]] += 1
    with pytest.raises(SystemExit, match="batch 1 of the device is not the CPU's"):
        gpu_sampling.check_bits(cpu, gpu_pipeline(graph.csc, config, x), schedule, 2)


@pytest.mark.slow
def test_the_device_and_a_plain_sampler_stand_beside_the_cpu(device, tmp_path):
    [row] = gpu_sampling.main(["--smoke", "--out", str(tmp_path / "sampling.jsonl")])
    gpus = {f"gpu {place}" for place in ("device/device", "device/host", "host/host")}
    assert set(row["batches_per_second"]) == {"cpu", "cpu+copy", "plain uva", *gpus}
    assert all(rate > 0 for rate in row["batches_per_second"].values())
    assert all(min(stages.values()) > 0 for stages in row["device_per_batch"].values())


def test_the_plain_sampler_draws_each_neighbour_alike_and_a_false_edge_is_found():
    torch.manual_seed(0)
    drawn, is_one = gpu_sampling._draw(torch.tensor([5, 1, 0]).repeat(4000), 2)
    drawn, is_one = drawn.view(4000, 3, 2), is_one.view(4000, 3, 2)
    assert is_one[0].tolist() == [[True, True], [True, False], [False, False]]
    assert (drawn[:, 0, 0] != drawn[:, 0, 1]).all()
    assert (drawn[:, 1, 0] == 0).all()
    share = drawn[:, 0].flatten().bincount(minlength=5) / 4000
    torch.testing.assert_close(share, torch.full((5,), 0.4), atol=0.03, rtol=0)

    graph = gpu_sampling.skewed_graph(100, 700, 4)
    schedule = SeedSchedule(seeds=graph.split("train"), batch_size=8, shuffle=True)
    config = SamplerConfig(fanouts=(3, 2), layout="blocks")
    [first] = make_pipeline(graph, config, [graph.x], num_threads=1, depth=1).run(schedule, 0, 0, 1)
    seeds = schedule.seeds_of(0, 0)
    plain = gpu_sampling.PlainSampler(graph, [3, 2], torch.device("cpu"))
    gpu_sampling.check_plain(graph, plain, first, seeds)
    plain._indices = plain._indices.flip(0)
    with pytest.raises(SystemExit, match="no sample of the graph"):
        gpu_sampling.check_plain(graph, plain, first, seeds)
