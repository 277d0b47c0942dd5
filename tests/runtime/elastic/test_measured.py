"""What a worker's recorder knows of its computing and of its averages."""

from partreduce.runtime.elastic.measured import measured
from partreduce.runtime.recorder import Operation


def operation(index, kind, round_, start, end, *, step=None, outcome="ok"):
    step = 2 * round_ + 1 if step is None else step
    return Operation(index, kind, step, round_, (0, 1), 800, start, end, outcome)


def test_computing_is_what_lies_between_two_averages_and_in_no_operation():
    operations = [
        operation(0, "average", 0, 10.0, 11.0),
        operation(1, "confirm", 0, 11.0, 11.5),
        operation(2, "average", 1, 15.5, 16.0),
        operation(3, "confirm", 1, 16.0, 16.5),
        operation(4, "average", 2, 18.5, 20.5),
    ]
    said = measured(operations, -1)
    assert (said["steps"], said["compute"]) == (4, 6.0)
    assert said["averages"] == [[0, [0, 1], 800, 1.0], [1, [0, 1], 800, 0.5], [2, [0, 1], 800, 2.0]]


def test_what_was_before_the_present_members_or_is_not_over_or_failed_or_lies_around_a_meeting_does_not_count():
    operations = [
        operation(0, "average", 3, 1.0, 2.0),
        operation(1, "average", 4, 3.0, 4.0),
        operation(2, "mean model", 4, 5.0, 6.0),
        operation(3, "average", 5, 7.0, 8.0),
        operation(4, "average", 6, 9.0, 9.5, outcome="failed: broken"),
        operation(5, "average", 6, 10.0, None),
    ]
    said = measured(operations, 3)
    assert (said["steps"], said["compute"]) == (0, 0.0)
    assert [one[0] for one in said["averages"]] == [4, 5]
    assert measured([], -1) == {"steps": 0, "compute": 0.0, "averages": []}
