"""Ranks on nodes: by their launcher's word, or by the names of their hosts."""

import pytest

from cepheid.reference.machine.nodes import Seat, decode_seat, find_seat, seat_rank
from cepheid.reference.machine.placement import Placement
from cepheid.rules.errors import UserError


def seats(hosts: str, told: list[tuple[int | None, int | None]] | None = None) -> list[Seat]:
    """Return one seat for each letter, which names host and machine."""
    told = told or [(None, None)] * len(hosts)
    return [Seat(host, f"boot-{host}", *each) for host, each in zip(hosts, told, strict=True)]


def arrange(these: list[Seat]) -> list[tuple[int | None, int | None]]:
    """Return local rank and ranks per node of all ranks."""
    places = [
        seat_rank(Placement(rank, len(these), seat.local_rank, seat.local_size), these)
        for rank, seat in enumerate(these)
    ]
    return [(place.local_rank, place.local_size) for place in places]


def test_hosts_tell_what_the_launcher_does_not() -> None:
    assert arrange(seats("aabb")) == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert arrange(seats("aaa")) == [(0, 3), (1, 3), (2, 3)]
    assert arrange(seats("ab")) == [(0, 1), (0, 1)]
    only_local_ranks = seats("aabb", [(0, None), (1, None), (0, None), (1, None)])
    assert arrange(only_local_ranks) == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_machines_of_the_same_name_are_two_nodes() -> None:
    these = [Seat("localhost", machine, None, None) for machine in ("x", "x", "y", "y")]
    assert arrange(these) == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_the_launchers_word_counts_on_virtual_nodes() -> None:
    told: list[tuple[int | None, int | None]] = [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert arrange(seats("aaaa", told)) == told
    containers = [Seat(host, "boot", *each) for host, each in zip("abcd", told, strict=True)]
    assert arrange(containers) == told


@pytest.mark.parametrize(
    ("hosts", "told", "message"),
    [
        ("aab", None, r"different numbers of ranks \(a: 2, b: 1\)"),
        ("abab", None, r"the ranks on a are not consecutive \(0, 2, …\).*--distribution=block"),
        ("aabb", [(0, 2), (1, 2), (0, 2), (2, 2)], r"rank 3 \(b\) is local rank 2 of 2 ranks"),
        ("aab", [(0, 2), (1, 2), (0, 1)], r"different numbers of ranks \(1, 2\)"),
        ("aab", [(0, 2), (1, 2), (0, 2)], "3 ranks do not fill nodes of 2"),
        ("abab", [(0, 2), (0, 2), (1, 2), (1, 2)], r"rank 1 \(b\) is local rank 0 of 2.*block"),
        ("abcd", [(0, 2), (1, 2)] * 2, r"ranks 0 \(a\) and 1 \(b\) share a node"),
        (
            "aabb",
            [(0, None), (0, None)] * 2,
            r"rank 1 \(a\) is local rank 0, as .* expected local rank 1",
        ),
        ("aaaa", [(None, 2)] * 4, r"rank 0 \(a\) is on a node of 2"),
    ],
)
def test_nodes_that_cannot_be(
    hosts: str, told: list[tuple[int | None, int | None]] | None, message: str
) -> None:
    these = seats(hosts, told)
    raised = set()
    for rank in range(len(these)):
        with pytest.raises(UserError, match=message) as caught:
            seat_rank(Placement(rank, len(these)), these)
        raised.add(str(caught.value))
    assert len(raised) == 1  # all ranks raise the same, so that one of them can print it


def test_a_seat_travels_as_json() -> None:
    seat = find_seat(Placement(1, 2, 1, None))
    assert decode_seat(seat.encode()) == seat
    assert (seat.local_rank, seat.local_size) == (1, None)
