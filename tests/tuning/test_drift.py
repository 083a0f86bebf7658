from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cosine as scipy_cosine  # type: ignore[import-untyped]
from scipy.stats import kendalltau  # type: ignore[import-untyped]

from workbench.errors import InvalidRequest
from workbench.tuning.drift import Drift, drift
from workbench.tuning.vectors import kendall_tau

F = np.float32


def between(ours: list[Any], theirs: list[Any], **options: Any) -> Drift:
    """The drift of one output y."""
    a, b = ([{"y": np.asarray(each)} for each in side] for side in (ours, theirs))
    return drift("other", "reference", a, b, **options)


def test_equal_answers_do_not_drift() -> None:
    rows = [np.array([[3.0, 1.0, 2.0]], F), np.array([[1.0, 5.0, 4.0]], F)]
    (output,) = between(rows, rows).outputs
    assert (output.max_abs, output.mean_abs, output.max_rel, output.equal) == (0, 0, 0, 1)
    assert (output.top_1, output.top_k, output.kendall_tau) == (1, 1, 1)


def test_differences_are_of_elements_and_relative_to_the_length_of_the_whole_tensor() -> None:
    theirs = [np.array([[3.0, 4.0]], F), np.array([[0.0, 10.0]], F)]
    ours = [np.array([[3.0, 4.5]], F), np.array([[0.1, 10.0]], F)]
    found = between(ours, theirs)
    (output,) = found.outputs
    assert output.max_abs == pytest.approx(0.5)
    assert output.mean_abs == pytest.approx(0.6 / 4, rel=1e-5)
    assert output.max_rel == pytest.approx(0.1)  # 0.5 of 5; an element of 0 is not divided by
    assert (found.worst, output.equal) == (0, 0.5)


def test_largest_elements_and_their_order() -> None:
    theirs = [np.array([[0.1, 0.2, 0.3, 0.4], [4.0, 3.0, 2.0, 1.0]], F)]
    ours = [np.array([[0.1, 0.2, 0.4, 0.3], [4.0, 3.0, 2.0, 1.0]], F)]
    (output,) = between(ours, theirs, top_k=2).outputs
    assert (output.top_1, output.top_k, output.k) == (0.5, 1.0, 2)
    assert output.kendall_tau == pytest.approx((2 / 3 + 1) / 2)


def test_equally_large_elements_are_as_good_as_each_other() -> None:
    (output,) = between([np.array([[1.0, 1.0, 0.0]], F)], [np.array([[0.9, 1.0, 0.0]], F)]).outputs
    assert output.top_1 == 1


def test_scores_one_a_row_are_ranked_over_the_rows() -> None:
    theirs = [np.array([[0.9], [0.5], [0.1]], F)]
    (output,) = between([np.array([[0.1], [0.5], [0.9]], F)], theirs).outputs
    assert output.kendall_tau == -1


@pytest.mark.parametrize("seed", range(20))
def test_kendalls_tau_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 6, (2, 15)).astype(np.float64)
    assert kendall_tau(a, b) == pytest.approx(float(kendalltau(a, b).statistic))


def test_texts_and_booleans_are_equal_or_not() -> None:
    theirs = [np.array([b"a", b"b"], np.object_), np.array([b"c", b"d"], np.object_)]
    ours = [np.array([b"a", b"b"], np.object_), np.array([b"c", b"x"], np.object_)]
    found = between(ours, theirs)
    assert (found.outputs[0].equal, found.worst) == (0.75, 1)
    assert math.isnan(found.outputs[0].max_abs)
    assert "75.0% equal" in repr(found)
    assert between([np.array([True])], [np.array([False])]).outputs[0].equal == 0


def test_what_is_no_number_on_one_side_only_is_as_far_as_can_be() -> None:
    nan, inf = float("nan"), float("inf")
    assert between([np.array([nan, inf], F)], [np.array([nan, inf], F)]).max_abs == 0
    assert between([np.array([nan, 1.0], F)], [np.array([1.0, 1.0], F)]).max_abs == inf


def test_a_persons_own_metric_names_the_worst_example() -> None:
    theirs, ours = [[0.0, 1.0], [0.0, 1.0]], [[9.0, 1.0], [0.0, 1.5]]
    found = between(ours, theirs, metric=lambda reference, other: float(abs(reference["y"][1] - other["y"][1])))
    assert (found.metric, found.worst) == (0.25, 1)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (RuntimeError("no scorer"), "it raised RuntimeError: no scorer"),
        (float("nan"), "it gave nan"),
        (None, "it gave a NoneType (None) where one number is wanted"),
        ("0.5", "it gave a str ('0.5') where one number is wanted"),
        (np.ones(3), "it gave a ndarray (shape [3]) where one number is wanted"),
        ([1.0], "it gave a list ([1.0]) where one number is wanted"),
    ],
)
def test_a_persons_own_metric_that_fails_is_told_with_its_example_and_the_rest_is_kept(given: Any, what: str) -> None:
    theirs, ours = [[0.0, 1.0], [0.0, 1.0]], [[9.0, 1.0], [0.0, 1.5]]

    def metric(reference: Any, other: Any) -> Any:
        if other["y"][0] == 0:
            if isinstance(given, Exception):
                raise given
            return given
        return 0.25

    found = between(ours, theirs, metric=metric)
    assert found.metric_error == f"your metric, on example 1 of 'other': {what}; 1 of 2 examples have no figure"
    assert (found.metric, found.worst, found.max_abs) == (0.25, 0, 9.0)
    assert f"! {found.metric_error}" in repr(found)


def labels_missing(*_: Any) -> float:
    raise ValueError("labels file missing")


@pytest.mark.parametrize(
    "metric",
    [
        lambda a, b: np.abs(a - b).max(),  # TypeError
        lambda a, b: a.max() - b.max(),  # AttributeError
        lambda a, b: a[0] - b[0],  # KeyError
        scipy_cosine,  # ValueError
        labels_missing,  # ValueError of another kind: nothing tells them apart
    ],
)
def test_a_persons_own_metric_that_expects_arrays_is_told_what_it_gets(metric: Any) -> None:
    ours, theirs = [{"OUTPUT__0": np.ones(2)}], [{"y": np.ones(2)}]
    found = drift("other", "reference", ours, theirs, metric=metric)
    assert "your metric, on example 0 of 'other': it raised " in found.metric_error
    assert found.metric_error.endswith(
        " (if it is made for arrays: it gets two dictionaries of them, the reference's and the other model's, by the "
        "reference's names: y)"
    )


def test_a_persons_own_metric_may_give_any_kind_of_number_and_changes_no_answer() -> None:
    for one in (1, True, np.float32(1), np.ones((1, 1)), np.array(1.0)):
        assert between([[1.0, 2.0]], [[1.0, 2.0]], metric=lambda *_, one=one: one).metric == 1

    def writes(reference: Any, other: Any) -> float:
        reference["y"] -= 1
        return 0.0

    assert "read-only" in between([[1.0, 2.0]], [[1.0, 2.0]], metric=writes).metric_error


def unit(rows: Any) -> Any:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(F)


def test_an_embedding_is_held_by_its_cosine_and_by_who_is_near_to_whom() -> None:
    rows = np.random.default_rng(1).normal(size=(6, 2, 96))
    theirs, ours = list(unit(rows)), list(unit(rows + 0.01))
    (output,) = between(ours, theirs).outputs
    assert (output.kind, output.why) == ("embedding", "vectors of unit length")
    assert 0.999 < output.cosine_min <= output.cosine < 1
    assert output.vectors == 12
    assert 0.9 < output.neighbours <= 1
    assert math.isnan(output.kendall_tau)
    assert math.isnan(output.top_1)
    assert "order of neighbours Kendall τ" in output.text
    # turned as a whole, each vector is another one, and all neighbours are the same
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(96, 96)))
    (turned,) = between([each @ turn for each in theirs], theirs).outputs
    assert turned.cosine < 0.5
    assert turned.neighbours == pytest.approx(1, abs=1e-3)
    # shuffled among the examples, the neighbours are others
    (shuffled,) = between(theirs[::-1], theirs).outputs
    assert shuffled.neighbours < 0.5


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ([np.array([[0.1, 0.7, 0.2]])], "scores"),  # probabilities
        ([np.array([[2.0], [-1.0]])], "scores"),  # one a row
        ([np.array([-1.0, 2.0]), np.array([1.0, -2.0, 3.0])], "scores"),  # of as many candidates as there are
        ([np.array([[3, -2, 1]])], "scores"),  # whole numbers
        ([np.array([[3.0, -2.0, 1.0]])], "scores"),  # few
        ([np.array([[0.6, -0.8, 0.0]])], "embedding"),
        ([np.linspace(-3, 5, 1000)[None]], "vectors"),  # logits, or features
    ],
)
def test_what_an_output_is_shows_in_its_values(reference: Any, kind: str) -> None:
    (output,) = between(reference, reference).outputs
    assert output.kind == kind
    assert math.isnan(output.kendall_tau) == (kind != "scores")
    assert math.isnan(output.cosine) == (kind == "scores")
    assert math.isnan(output.top_1) == (kind == "embedding")
    (said,) = between(reference, reference, kinds={"y": "embedding"}).outputs
    assert (said.kind, said.why, said.cosine_min) == ("embedding", "as you said", pytest.approx(1))


def test_frameworks_rename_outputs() -> None:
    theirs, ours = [{"logits": np.ones(2), "state": np.zeros(1)}], [{"OUTPUT__0": np.ones(2), "OUTPUT__1": np.ones(1)}]
    found = drift("other", "reference", ours, theirs)
    assert [(each.output, each.name, each.max_abs) for each in found.outputs] == [
        ("logits", "OUTPUT__0", 0),
        ("state", "OUTPUT__1", 1),
    ]
    with pytest.raises(InvalidRequest, match="no output in common"):
        drift("other", "reference", [{"a": np.ones(1)}], theirs)
    (output,) = drift("other", "reference", [{"a": np.ones(1)}], theirs, names={"state": "a"}).outputs
    assert output.max_abs == 1


def test_other_shapes_are_refused_with_both() -> None:
    with pytest.raises(InvalidRequest, match=r"has shape \[1, 3\].*has \[1, 2\]"):
        between([np.ones((1, 3))], [np.ones((1, 2))])


def test_no_elements_at_all_are_no_difference() -> None:
    (output,) = between([np.ones((0, 3), F)], [np.ones((0, 3), F)]).outputs
    assert math.isnan(output.max_abs)


def test_of_whole_numbers_it_is_told_how_many_are_the_same() -> None:
    """They may be labels: 7 for 8 is another one, whatever their order."""
    (output,) = between([np.array([[3], [8]])], [np.array([[3], [7]])]).outputs
    assert output.equal == 0.5
    assert "50.0% equal" in output.text
    large = 2**60  # as floats both are the same
    (output,) = between([np.array([large + 1])], [np.array([large])]).outputs
    assert (output.equal, output.max_abs) == (0, 1)


@pytest.mark.parametrize("kind", [F, np.float16, np.float64])
@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ([math.nan] * 4, [math.nan] * 4, "NaN: 4 of 4 values, 4 of the reference's"),
        ([1, 2, math.nan, 4], [1, 2, 3, 4], "NaN: 1 of 4 values, 0 of the reference's"),
        ([1, 2, 3, 4], [1, math.nan, math.nan, 4], "NaN: 0 of 4 values, 2 of the reference's"),
        ([1, 2, math.inf, 4], [1, 2, 3, 4], ""),
    ],
)
def test_how_many_values_are_nan_is_told_of_each_side(kind: Any, ours: Any, theirs: Any, text: str) -> None:
    found = between([np.array([ours], kind)], [np.array([theirs], kind)])
    (output,) = found.outputs
    assert text in output.text
    assert ("NaN" in repr(found)) == bool(text)
    counts = (output.nans, output.nans_of_reference)
    assert counts == (sum(map(math.isnan, ours)), sum(map(math.isnan, theirs)))
    assert (output.to_json()["nans"], output.to_json()["nans_of_reference"]) == counts
