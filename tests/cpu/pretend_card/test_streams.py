"""Queues of a pretend card: order within a stream, waits between them, and nothing earlier than it has to be."""

import pytest

from snugfit.pretend_card.streams import DEPTH, Streams


@pytest.fixture(params=range(5))
def streams(request):
    return Streams(request.param)


def _noting(done, name):
    return lambda: done.append(name)


def test_a_stream_keeps_its_order(streams):
    done = []
    for number in range(300):
        streams.put(1, _noting(done, number))
    streams.finish_all()
    assert done == list(range(300))


def test_nothing_is_done_for_what_nobody_waits_for():
    done = []
    late = [Streams(seed) for seed in range(20)]
    for streams in late:
        streams.put(0, _noting(done, "work"))
    assert len(done) < 5  # each had a small chance to go on early


def test_what_is_before_a_mark_is_done_and_what_it_waits_for(streams):
    done = []
    streams.put(0, _noting(done, "made"))
    made = streams.mark(0)
    streams.put(0, _noting(done, "unrelated"))
    streams.wait(1, made)
    streams.put(1, _noting(done, "copied"))
    streams.finish(streams.mark(1))
    assert done.index("made") < done.index("copied")
    assert streams.reached(made)


def test_without_a_wait_another_stream_may_be_first():
    orders = set()
    for seed in range(40):
        done, streams = [], Streams(seed)
        streams.put(0, _noting(done, "made"))
        streams.put(1, _noting(done, "copied"))
        streams.finish(streams.mark(1))
        streams.finish_all()
        orders.add(tuple(done))
    assert ("copied", "made") in orders


def test_two_streams_that_wait_for_each_other_in_turn(streams):
    done = []
    for number in range(50):
        streams.put(number % 2, _noting(done, number))
        streams.wait(1 - number % 2, streams.mark(number % 2))
    streams.finish(streams.mark(0))
    streams.finish_all()
    assert done == list(range(50))


def test_a_full_queue_goes_on(streams):
    done = []
    for number in range(3 * DEPTH):
        streams.put(0, _noting(done, number))
    assert len(done) >= DEPTH
    assert done == list(range(len(done)))


def test_work_at_once():
    done, streams = [], Streams(eager=True)
    streams.put(1, _noting(done, 1))
    assert done == [1] and streams.reached(streams.mark(1))


def test_an_error_of_queued_work_comes_where_the_host_waits():
    streams = Streams(3)

    def fail():
        raise RuntimeError("device-side assert")

    with pytest.raises(RuntimeError, match="device-side assert"):
        streams.put(0, fail)
        streams.finish_all()


def test_what_another_card_had_queued_is_done():
    """A tensor that outlives its card asks for it when it is collected."""
    before, now = Streams(), Streams()
    for number in range(9):
        before.put(3, _noting([], number))
    done = []
    now.wait(0, before.mark(3))
    now.put(0, _noting(done, "work"))
    now.finish_all()
    assert done == ["work"]
