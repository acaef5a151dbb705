"""``convert --features-dtype``: what it prints, and that the store trains."""

import pytest
from tests.features.tables import flip_a_byte

from graphbraid import ScaledFeatures
from graphbraid.datasets import open_store


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_store_is_narrowed_and_the_rounding_is_told(graphbraid, store, tmp_path, dtype):
    done = graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", dtype)
    assert f"features as {dtype}: relative error of a row at most " in done.stderr
    found = open_store(tmp_path / "narrow").x
    if dtype == "int8":
        assert isinstance(found, ScaledFeatures)
    else:
        assert str(found.dtype) == f"torch.{dtype}"
    graphbraid("reorder", "--data", tmp_path / "narrow", "--by", "degree", "--out", tmp_path / "moved")
    assert type(open_store(tmp_path / "moved").x) is type(found)


def test_the_rounding_is_part_of_the_json(graphbraid, store, tmp_path):
    done = graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", "int8", "--json")
    rounding = done.json["rounding"]
    assert rounding["dtype"] == done.json["features_dtype"] == "int8"
    assert 0 < rounding["mean"] <= rounding["largest"] < 0.05
    assert "rounding" not in graphbraid("convert", store, tmp_path / "plain", "--json").json


def test_a_narrow_store_trains_with_its_rows_on_disk(graphbraid, store, tmp_path):
    graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", "int8")
    losses = []
    for number, options in enumerate(((), ("--host", "0"))):
        done = graphbraid(
            *("train", "--data", tmp_path / "narrow", "--out", tmp_path / str(number), "--epochs", 1),
            *("--hidden", 8, "--batch-size", 32, "--fanouts", "5,5", "--quiet", "--json", *options),
        )
        losses.append([row["train_loss"] for row in done.json["result"]["history"]])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_info_tells_the_dtype_and_checks_the_scales(graphbraid, store, tmp_path, dtype):
    graphbraid("convert", store, tmp_path / "narrow", "--features-dtype", dtype)
    assert f" features in {dtype}, " in graphbraid("info", tmp_path / "narrow").stdout
    assert graphbraid("info", tmp_path / "narrow", "--check", "--json").json["features_dtype"] == dtype
    assert graphbraid("info", store, "--json").json["features_dtype"] == "float32"
    if dtype == "int8":
        flip_a_byte(tmp_path / "narrow" / "x_scale.npy", 128 + 3)
        done = graphbraid("info", tmp_path / "narrow", "--check", code=3)
        assert "x_scale.npy has changed" in done.stderr
