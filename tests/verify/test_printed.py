"""Numbers of a clock and of a place are no numbers of the training; all others are compared."""

from __future__ import annotations

import pytest

from ddpify.verify.equivalence.events import Line
from ddpify.verify.equivalence.printed import Printed, compare_lines


def compared(original: str, ranks: str) -> Printed:
    return compare_lines([Line(text=original)], [Line(text=ranks)], 1e-4)


@pytest.mark.parametrize(
    ("original", "ranks"),
    [
        ("Time 0.123 (0.100)  Data 0.010 (0.020)  Loss 1.5", "Time 0.456 ( 0.300)  Data 0.001 (0.002)  Loss 1.5"),
        ("batch_time: 0.2 data_time: 0.01 loss: 1.5", "batch_time: 0.7 data_time: 0.31 loss: 1.5"),
        ("[train.py:52] loss 1.5", "[train.py:61] loss 1.5"),
        ('File "train.py", line 52: loss 1.5', 'File "train.py", line 61: loss 1.5'),
        ("runs/20261201-024501 loss 1.5", "runs/20261201-024733 loss 1.5"),
        ("runs/exp_20261201_024501 loss 1.5", "runs/exp_20261201_024733 loss 1.5"),
        ("2026-12-01 02:45:01,123 - loss 1.5", "2026-12-01 02:47:33,456 - loss 1.5"),
        ("12/01/2026 02:45:01 loss 1.5", "12/02/2026 02:47:33 loss 1.5"),
        ("3.1 s/it, loss 1.5", "9.9 s/it, loss 1.5"),
        ("12 it/s, loss 1.5", "14 it/s, loss 1.5"),
        ("120 ms/step, loss 1.5", "96 ms/step, loss 1.5"),
    ],
)
def test_the_numbers_of_clocks_and_places_are_left_out(original: str, ranks: str) -> None:
    found = compared(original, ranks)
    assert (found.equal, found.differ, found.missing) == (1, (), ())


@pytest.mark.parametrize(
    ("original", "ranks"),
    [
        ("Data 100 of 200", "Data 50 of 200"),  # no time beside it: a count of samples
        ("epoch 1/10 acc 0.91", "epoch 1/10 acc 0.82"),
        ("Epoch: [1][20/100] Loss 1.5 (1.6)", "Epoch: [1][20/100] Loss 1.5 (1.9)"),
        ("Time 0.1 (0.2) Loss 1.5", "Time 0.1 (0.2) Loss 1.7"),
        ("100 it, loss 1.5", "50 it, loss 1.5"),
        ("layer12 1.5", "layer12 1.9"),
        ("mse=.25", "mse=.35"),
        ("delta -0.5", "delta 0.5"),
    ],
)
def test_a_number_of_the_training_is_compared(original: str, ranks: str) -> None:
    assert len(compared(original, ranks).differ) == 1
