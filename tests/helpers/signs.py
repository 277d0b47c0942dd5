"""Signs of life as waits ask for them, where nobody runs who could give any."""


class Signs:
    """Of workers of whom nobody is gone, until somebody says so in `why`; all of `SignsOfLife`.

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
