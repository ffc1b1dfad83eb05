from hypothesis import settings
from tests.frontier.test_fair_model import FairModel


class More(FairModel):
    pass


More.TestCase.settings = settings(max_examples=1500, stateful_step_count=80, deadline=None)
test_more = More.TestCase
