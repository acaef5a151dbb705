"""The fused loss of classes beside PyTorch's."""

import gc
import importlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import needs_kernels
from tests.ops.graphs import assert_same_bits_with_any_threads, values

from graphbraid.errors import DataError
from graphbraid.ops import cross_entropy
from graphbraid.ops.cross_entropy import _kept as kept

INF = float("inf")


def labels_of(num_rows, num_classes, ignored=0.0):
    generator = torch.Generator().manual_seed(num_rows)
    labels = torch.randint(0, num_classes, (num_rows,), generator=generator)
    return labels.where(torch.rand(num_rows, generator=generator) >= ignored, -100)


def both(logits, labels, weights=None, scale=1.0):
    """Loss and gradient of ours, and PyTorch's in float64."""
    found = []
    for loss, dtype in ((cross_entropy, torch.float32), (F.cross_entropy, torch.float64)):
        x = logits.detach().to(dtype).requires_grad_()
        mean = loss(x, labels, None if weights is None else weights.to(dtype))
        (mean * scale).backward()
        found.append((mean.detach().double(), x.grad.double()))
    return found


def assert_equal(ours, theirs):
    (loss, grad), (true_loss, true_grad) = ours, theirs
    torch.testing.assert_close(loss, true_loss, rtol=2e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(grad, true_grad, rtol=2e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("num_classes", [1, 2, 7, 16, 17, 40, 100])
@pytest.mark.parametrize("num_rows", [1, 15, 600, 3000])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_are_pytorchs(num_classes, num_rows, ignored, weighted):
    weights = torch.rand(num_classes) + 0.1 if weighted else None
    labels = labels_of(num_rows, num_classes, ignored)
    assert_equal(*both(values(num_rows, num_classes) * 4, labels, weights, scale=3.0))


@given(st.data())
def test_any_logits(data):
    num_rows, num_classes = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    numbers = st.floats(-200, 200, width=32)
    row = st.lists(numbers, min_size=num_classes, max_size=num_classes)
    logits = torch.tensor(data.draw(st.lists(row, min_size=num_rows, max_size=num_rows)))
    assert_equal(*both(logits, labels_of(num_rows, num_classes)))


@pytest.mark.parametrize("bad", [INF, -INF, float("nan")])
@pytest.mark.parametrize("column", [0, 3, 18])
def test_what_is_not_finite_is_as_in_pytorch(bad, column):
    logits = values(4, 19)
    logits[2, column] = bad
    assert_equal(*both(logits, torch.tensor([1, 2, 3, 4])))


def test_a_row_of_minus_infinity_is_not_a_number():
    logits = torch.full((2, 5), -INF)
    assert cross_entropy(logits, torch.tensor([0, 1])).isnan()


def test_no_row_that_counts_gives_nan():
    assert cross_entropy(values(3, 4), torch.full((3,), -100)).isnan()
    assert cross_entropy(values(0, 4), torch.zeros(0, dtype=torch.int64)).isnan()
    assert cross_entropy(values(2, 2), torch.tensor([0, 0]), torch.tensor([0.0, 1.0])).isnan()


def test_a_second_backward_gives_the_same_gradient_again_unless_the_graph_is_freed():
    logits = values(5, 4).requires_grad_()
    loss = cross_entropy(logits, labels_of(5, 4))
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    loss.backward()
    assert torch.equal(logits.grad, 2 * once)
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


@pytest.mark.slow
@needs_kernels
def test_the_gradients_memory_is_reused_once_nobody_has_it():
    logits, labels = values(9_000, 1_000).requires_grad_(), labels_of(9_000, 1_000)

    def gradient(labels):
        return torch.autograd.grad(cross_entropy(logits, labels), logits)[0]

    first = gradient(labels)
    expected, place = first.clone(), first.data_ptr()
    second = gradient(labels)
    assert second.data_ptr() != place  # the first is still there
    second.zero_()
    assert torch.equal(first, expected)
    del first
    assert gradient(labels).data_ptr() == place
    kept = gradient(labels)
    other = gradient(labels.clone())
    assert other.data_ptr() != kept.data_ptr()
    assert torch.equal(other, expected)


@pytest.mark.slow
@needs_kernels
def test_memory_goes_with_the_labels():
    logits, labels = values(9_000, 1_000).requires_grad_(), labels_of(9_000, 1_000)
    before = len(kept)
    cross_entropy(logits, labels).backward()
    assert len(kept) == before + 1
    del labels
    gc.collect()
    assert len(kept) == before


def test_threads_with_the_same_labels_have_gradients_of_their_own(monkeypatch):
    module = importlib.import_module("graphbraid.ops.cross_entropy")  # not its function
    monkeypatch.setattr(module, "_LEAST_KEPT", 1 << 20)
    logits, labels = values(9_000, 60), labels_of(9_000, 60)
    weights = [torch.rand(60) + 0.1 for _ in range(4)]

    def gradient(weight):
        x = logits.clone().requires_grad_()
        for _ in range(3):
            found = torch.autograd.grad(cross_entropy(x, labels, weight), x)[0].clone()
        return found

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(gradient, weights))
    for weight, found in zip(weights, together, strict=True):
        assert torch.equal(found, gradient(weight))


def test_bits_do_not_depend_on_the_number_of_threads():
    logits, labels = values(9_000, 40), labels_of(9_000, 40)

    def run():
        x = logits.clone().requires_grad_()
        loss = cross_entropy(x, labels)
        loss.backward()
        return [loss.detach(), x.grad]

    assert_same_bits_with_any_threads(run)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_pytorchs_own(dtype):
    logits, labels = values(6, 3).to(dtype), labels_of(6, 3)
    assert torch.equal(cross_entropy(logits, labels), F.cross_entropy(logits, labels))


def test_columns_that_stand_apart_are_read_as_they_are():
    logits = values(7, 12).t()[:, ::2]
    assert_equal(*both(logits, labels_of(12, 4)))


@pytest.mark.parametrize("label", [4, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_label_that_is_no_column_is_named(label, dtype):
    says = (
        rf"labels must name one of the 4 columns of logits, or be -100 for no class; labels\[1\] is {label}"
    )
    with pytest.raises(DataError, match=says):
        cross_entropy(values(2, 4).to(dtype), torch.tensor([0, label]))


@pytest.mark.parametrize(
    ("logits", "labels", "weight", "says"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64), None, "logits must have 2 dimensions"),
        (torch.zeros(2, 3).int(), torch.zeros(2, dtype=torch.int64), None, "logits must be floating point"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), None, "one entry for each of the 2 rows"),
        (torch.zeros(2, 3), torch.zeros(2), None, "labels must be int64"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.ones(2), "each of the 3 columns"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, dtype=torch.int64),
            torch.ones(3).double(),
            "weight must be torch",
        ),
    ],
)
def test_what_does_not_fit_is_refused(logits, labels, weight, says):
    with pytest.raises(DataError, match=says):
        cross_entropy(logits, labels, weight)
