"""Signs of life as waits ask for them, in tests without other workers."""


class Signs:
    """Of workers that are all there, until a test sets `why`; all of `SignsOfLife`.

    A wait asks for most of it only when it lasts, which on a busy machine any wait may.
    """

    why = None
    asked = 0

    def failure_reason(self, members, round_=None):
        self.asked += 1
        return self.why

    def lost(self, members):
        return frozenset()

    def store_lost(self):
        return None

    def num_changes(self):
        return self.asked

    def doing(self, text, waits=()):
        pass

    def watch(self, members):
        pass

    def describe_wait(self, members, seconds):
        return f"waits for worker {members[0]} for more than {seconds:g} s"

    def is_diagnosed(self, members):
        return True
