"""What the messages of errors have in common."""

import pytest

from graphbraid.errors import did_you_mean


@pytest.mark.parametrize(
    ("name", "known", "question"),
    [
        ("fanout", ["fanouts", "epochs"], " Did you mean 'fanouts'?"),
        ("ADAMM", ["adam", "sgd"], " Did you mean 'adam'?"),
        ("cora", ["Cora.npz", "Corra"], " Did you mean 'Corra'?"),  # nearest in any case, named in its own
        ("xyz", ["fanouts", "epochs"], ""),
        (3, ["fanouts"], ""),
        ("fanouts", [], ""),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest_known_one(name, known, question):
    assert did_you_mean(name, iter(known)) == question
    assert did_you_mean(name, known, joined=True) == question.replace(" Did", "; did")
