"""How soon conversations come back is learned from what they did."""

from __future__ import annotations

from engine.vllm.blocks.returns import Returns


def turn(returns: Returns, name: str, number: int) -> None:
    """A turn of a conversation that is found by the end of the one before."""
    watched = returns.use([f"{name}-{at}" for at in range(1, number)])
    assert watched.uses == number
    returns.named(watched, f"{name}-{number}")


def test_at_first_what_was_away_for_long_is_worth_less() -> None:
    returns = Returns()
    for number in range(15):
        turn(returns, f"c{number}", 1)
    worth = [returns.density(1, last) for last in range(1, 16)]
    assert worth == sorted(worth)
    assert worth[0] < worth[-1]


def test_what_comes_once_is_worth_less_than_what_comes_back() -> None:
    returns = Returns()
    for round_ in range(1, 60):
        for number in range(3):
            turn(returns, f"active-{number}", round_)
            for other in range(4):
                turn(returns, f"once-{round_}-{number}-{other}", 1)
    just_now, a_round_ago = returns.now, returns.now - 14
    # The one that came last is the most recent of all, and the first to go.
    assert returns.density(1, just_now) < 0.2 * returns.density(59, a_round_ago)


def test_what_comes_in_turns_is_worth_more_the_nearer_its_turn_is() -> None:
    returns = Returns()
    for round_ in range(1, 40):
        for number in range(30):
            turn(returns, f"c{number}", round_)
    assert returns.density(39, returns.now - 27) > 2 * returns.density(39, returns.now - 1)


def test_those_that_rest_are_worth_less_than_those_that_go_on() -> None:
    returns = Returns()
    for round_ in range(1, 80):
        turn(returns, "active", round_)
        for number in range(1, 6):
            turn(returns, f"resting-{round_}", number)
    assert returns.density(5, returns.now - 40) < 0.5 * returns.density(5, returns.now - 1)


def test_what_is_watched_is_bounded_and_what_is_forgotten_counts_as_gone() -> None:
    bounded, whole = Returns(most=8), Returns()
    for returns in (bounded, whole):
        for number in range(200):
            turn(returns, f"once-{number}", 1)
    assert (len(bounded), len(whole)) == (8, 200)
    fresh = Returns().density(1, 0)
    assert bounded.density(1, bounded.now) < 0.2 * fresh
