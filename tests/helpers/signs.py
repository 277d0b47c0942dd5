"""Signs of life as waits ask for them, in tests without other workers."""


class Signs:
    """Of workers that are all there, until a test sets `why`; all of `SignsOfLife`.

    A wait asks for most of it only when it lasts, which on a busy machine any wait may.
    """

    why = None
    asked = 0

    def gone(self, members, round_=None):
        self.asked += 1
        return self.why

    def lost(self, members):
        return frozenset()

    def store_lost(self):
        return None

    def news(self):
        return self.asked

    def doing(self, text, waits=()):
        pass

    def watch(self, members):
        pass

    def waits_for(self, members, seconds):
        return f"waits for worker {members[0]} for more than {seconds:g} s"

    def sees_silence(self, members):
        return True
