"""Bins against an exact search on small inputs and against the published procedures written out slowly."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_dataplane.bins import lower_bound, pack_bins


@st.composite
def problems(draw, most_items=9):
    capacity = draw(st.integers(1, 60))
    sizes = draw(st.lists(st.integers(0, capacity), max_size=most_items))
    return sizes, capacity


def fewest_bins(sizes, capacity):
    """By trying everything."""
    best = len(sizes)

    def place(index, rooms):
        nonlocal best
        if len(rooms) >= best:
            return
        if index == len(sizes):
            best = len(rooms)
            return
        for number, room in enumerate(rooms):
            if room >= sizes[index]:
                place(index + 1, [*rooms[:number], room - sizes[index], *rooms[number + 1 :]])
        place(index + 1, [*rooms, capacity - sizes[index]])

    place(0, [])
    return best


def best_fit_decreasing(sizes, capacity):
    rooms = []
    for size in sorted(sizes, reverse=True):
        fitting = [number for number, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=lambda number: rooms[number])] -= size
        else:
            rooms.append(capacity - size)
    return len(rooms)


def modified_first_fit_decreasing(sizes, capacity):
    """Johnson and Garey's procedure as NeMo-RL has it, on plain lists."""
    left = sorted(sizes, reverse=True)
    bins = [[size] for size in left if size > capacity / 2]
    left = left[len(bins) :]

    def room(content):
        return capacity - sum(content)

    for content in bins:
        for size in left:
            if capacity / 3 < size <= room(content):
                content.append(size)
                left.remove(size)
                break
    for content in reversed(bins):
        small = sorted(size for size in left if capacity / 6 < size <= capacity / 3)
        if len(content) == 1 and len(small) > 1 and small[0] + small[1] <= room(content):
            content.append(small.pop(0))
            content.append(max(size for size in small if size <= room(content)))
            for size in content[1:]:
                left.remove(size)
    for content in bins:
        while fitting := [size for size in left if size <= room(content)]:
            content.append(fitting[0])
            left.remove(fitting[0])
    rest = []
    for size in left:
        if rest and size <= room(emptiest := min(rest, key=sum)):
            emptiest.append(size)
        else:
            rest.append([size])
    return len(bins + rest)


@given(problems())
def test_every_item_is_in_one_bin_and_no_bin_is_too_full(problem):
    sizes, capacity = problem
    bins = pack_bins(sizes, capacity)
    assert sorted(item for content in bins for item in content) == list(range(len(sizes)))
    assert all(content and sum(sizes[item] for item in content) <= capacity for content in bins)


@given(problems(most_items=7))
def test_the_lower_bound_and_the_fewest_possible_enclose_the_bins(problem):
    sizes, capacity = problem
    assert lower_bound(sizes, capacity) <= fewest_bins(sizes, capacity) <= len(pack_bins(sizes, capacity))


@given(problems(most_items=40))
def test_no_more_bins_than_the_published_procedures_need(problem):
    sizes, capacity = problem
    found = len(pack_bins(sizes, capacity))
    assert found <= best_fit_decreasing(sizes, capacity)
    assert found <= modified_first_fit_decreasing(sizes, capacity)


def test_nearly_all_random_problems_are_solved_with_the_fewest_bins():
    chance = random.Random(7)
    missed = 0
    for _ in range(300):
        sizes = [chance.randint(1, 60) for _ in range(chance.randint(1, 9))]
        missed += len(pack_bins(sizes, 60)) > fewest_bins(sizes, 60)
    assert missed <= 1


def test_thousands_of_items_that_leave_no_small_ones_to_fill_up_with_stay_near_the_bound():
    """Best fit decreasing needs 593 bins, 7 more than the lower bound."""
    chance = random.Random(1)
    sizes = [chance.randint(200, 600) for _ in range(6000)]
    assert lower_bound(sizes, 4096) == -(-sum(sizes) // 4096) == 586
    assert len(pack_bins(sizes, 4096)) <= 587


def test_pairs_that_fill_a_bin_exactly_are_found():
    """Best fit decreasing needs 3 bins here: it puts 5 and 4 together."""
    assert len(pack_bins([5, 4, 4, 3, 2, 2], 10)) == 2


def test_large_items_are_paired_first_where_only_that_helps():
    """Best fit decreasing and filling bin by bin need 4 bins here, modified first fit decreasing 3."""
    sizes = [12, 11, 10, 6, 6, 5, 4, 4]
    assert best_fit_decreasing(sizes, 20) == 4
    assert modified_first_fit_decreasing(sizes, 20) == 3
    assert len(pack_bins(sizes, 20)) == 3


def test_the_same_sizes_give_the_same_bins():
    chance = random.Random(2)
    sizes = [chance.randint(1, 300) for _ in range(500)]
    assert pack_bins(sizes, 1000) == pack_bins(list(sizes), 1000)


@pytest.mark.parametrize("sizes", [[5, 11], [-1]])
def test_what_does_not_go_into_any_bin_is_refused(sizes):
    with pytest.raises(ValueError, match=f"size {sizes[-1]} does not go into a bin of 10"):
        pack_bins(sizes, 10)
