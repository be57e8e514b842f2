"""The card of a plan."""

from snugfit.report.plan_card import memory_in_words
from snugfit.units import GIB, MIB


def test_a_plan_that_reserves_more_than_its_budget_where_it_may_says_how_it_fits():
    assert memory_in_words(17 * GIB, 16 * GIB, 148 * MIB) == (
        "fits 16.0 GiB, where cached blocks are given back, and 148 MiB of the budget are left; 17.0 GiB with more room"
    )
    assert memory_in_words(15 * GIB, 16 * GIB, 148 * MIB) == "15.0 GiB; 148 MiB of the budget are left"
    assert memory_in_words(17 * GIB, 16 * GIB, None) == "17.0 GiB where memory is not short"
