"""The machine against a model that keeps every message by itself and is obviously right.

Goal: whatever the order of commands, every message is in the state in which the model has it, every
reply is the model's, and the limits admit exactly what the model has room for. Method: Hypothesis
searches and shrinks; random walks are long enough for messages to die, be redriven and die again. After
every step all messages are compared one by one.
"""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from queue_both import ACTIONS, NEEDS_A_DELIVERY, Both, choice, sizes, wanted

FREELY = sorted(set(ACTIONS) - set(NEEDS_A_DELIVERY))


class Search(RuleBasedStateMachine):
    """Rules that lead somewhere are there more than once."""

    def __init__(self):
        super().__init__()
        self.both = Both()

    @rule(data=st.data())
    def publish_and_receive(self, data):
        choose = chooser(data)
        self.both.publish(**sizes(choose))
        self.both.receive(**wanted(choose))

    @precondition(lambda self: self.both.seen)
    @rule(action=st.sampled_from(NEEDS_A_DELIVERY), data=st.data())
    def settle(self, action, data):
        self.act(action, data)

    @precondition(lambda self: self.both.seen)
    @rule(data=st.data())
    def reject(self, data):
        options = {"delay": 0, "counts": True, "reject": True}
        self.both.nack(**choice(chooser(data)), **options)

    @rule(data=st.data())
    def pass_time(self, data):
        self.act("pass_time", data)

    @rule(action=st.sampled_from(FREELY), data=st.data())
    def anything(self, action, data):
        self.act(action, data)

    def act(self, action, data):
        _, arguments = ACTIONS[action]
        getattr(self.both, action)(**arguments(chooser(data)))

    @invariant()
    def they_agree(self):
        self.both.check()


def chooser(data):
    return lambda values: data.draw(st.sampled_from(values))


TestSearch = Search.TestCase
TestSearch.settings = settings(
    deadline=None, max_examples=30, stateful_step_count=40, derandomize=True
)


@pytest.mark.parametrize("seed", range(8))
def test_a_long_random_walk_agrees(seed):
    random = Random(seed)
    both = Both()
    names, weights = list(ACTIONS), [weight for weight, _ in ACTIONS.values()]
    for _ in range(300):
        (action,) = random.choices(names, weights)
        if both.seen or action not in NEEDS_A_DELIVERY:
            _, arguments = ACTIONS[action]
            getattr(both, action)(**arguments(random.choice))
            both.check()
