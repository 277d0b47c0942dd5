"""A stand-in for the signs of life that waits check, for tests without other workers."""


class Signs:
    """Implements `SignsOfLife` for workers that are all alive, until a test sets `why` to a failure's reason.

    A wait checks most of it only when it lasts; on a busy machine any wait may last.
    """

    why = None
    calls = 0

    def failure_reason(self, members, round_=None):
        self.calls += 1
        return self.why

    def lost(self, members):
        return frozenset()

    def store_lost(self):
        return None

    def num_changes(self):
        return self.calls

    def doing(self, text, waits=()):
        pass

    def watch(self, members):
        pass

    def describe_wait(self, members, seconds):
        return f"waits for worker {members[0]} for more than {seconds:g} s"

    def is_diagnosed(self, members):
        return True
