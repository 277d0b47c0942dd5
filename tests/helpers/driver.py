"""Starts and talks to a process that forks the workers of named scenarios, such as `helpers.scenarios`."""

import json
import os
import selectors
import signal

from helpers.warm import WARM


class Driver:
    def __init__(self, name):
        self.name = name
        self.process, self.stdin, self.stdout = WARM.talk(name)

    def run(self, name, *, limit=250, **request):
        self.stdin.write(json.dumps({"name": name, **request}) + "\n")
        self.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.close()
                self.__init__(self.name)  # else its late answer would be taken for that of the next scenario
                raise AssertionError(f"{name}: hangs; no answer within {limit} s")
        answer = json.loads(self.stdout.readline())
        lines = answer["output"].splitlines()
        answer["reports"] = [json.loads(line.split("REPORT ", 1)[1]) for line in lines if "REPORT " in line]
        answer["errors"] = {r["rank"]: r for r in answer["reports"] if r.get("error")}
        answer["faults"] = [r for r in answer["reports"] if "fault" in r]
        return answer

    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.stdin.close()
        self.stdout.close()
