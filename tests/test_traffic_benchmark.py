"""benchmarks.tiers.traffic on a tiny graph: what travels is what the score foretells; checks."""

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.graphs import generated
from benchmarks.graphs.folder import save
from benchmarks.tiers import traffic


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    save(generated.make("dense", generated.SMOKE["dense"]), folder / "tiny")
    out = folder / "out.jsonl"
    sampled = ["--fanouts", "3", "2", "--batch-size", "10", "--width", "3"]
    traffic.main(["--graphs", str(folder), "--names", "tiny", *sampled, "--out", str(out)])
    [row] = read_lines(out)
    return row


def test_what_travels_is_what_the_score_foretells(row):
    foretold = [round(num_bytes) for num_bytes in row["foretold_bytes"]]
    assert row["copies_bytes"] == row["device_bytes"] == foretold
    assert foretold == sorted(foretold, reverse=True)
    assert foretold[0] == row["num_reads"] * 3 * 4
    assert foretold[-1] < 0.5 * foretold[0]
    assert all(ahead <= found for ahead, found in zip(row["look-ahead_bytes"], foretold, strict=True))


@pytest.mark.parametrize(
    ("way", "factor", "is_wrong"),
    [
        ("copies", 1.02, True),
        ("copies", 0.98, True),
        ("device", 1.02, True),
        ("look-ahead", 1.02, True),
        ("copies", 1.005, False),
        ("look-ahead", 0.5, False),
    ],
)
def test_bytes_that_cannot_be_end_the_benchmark(row, way, factor, is_wrong):
    changed = row | {f"{way}_bytes": [factor * num_bytes for num_bytes in row["foretold_bytes"]]}
    if is_wrong:
        with pytest.raises(SystemExit, match=f"tiny, 0% hot, {way}: .* where the score's share says"):
            traffic.check(changed)
    else:
        traffic.check(changed)


def test_rows_of_other_nodes_end_the_benchmark(row, monkeypatch):
    del row
    graph = generated.make("dense", generated.SMOKE["dense"])
    parsed = type("Options", (), {"fanouts": [3, 2], "batch_size": 10, "width": 2, "seed": 0})
    monkeypatch.setattr(traffic.torch, "equal", lambda *_: False)
    with pytest.raises(SystemExit, match="0% hot: batch 0 has rows of other nodes"):
        traffic.measure(graph, parsed)
