"""Log lines at most once a period each."""

from sparkrt_ros.nodes.throttle import ThrottledLog


class Recorder:
    def __init__(self):
        self.lines = []

    def warning(self, text):
        self.lines.append(('warning', text))

    def error(self, text):
        self.lines.append(('error', text))


def test_each_key_has_its_own_period_and_tells_what_was_left_out():
    recorder, now = Recorder(), [0.0]
    log = ThrottledLog(recorder, period_s=1.0, clock_s=lambda: now[0])
    for _ in range(3):
        log.warning('a', 'first')
    log.error('b', 'second')
    now[0] = 0.99
    log.warning('a', 'first')
    now[0] = 1.0
    log.warning('a', 'first')
    now[0] = 2.0
    log.warning('a', 'first')
    assert recorder.lines == [
        ('warning', 'first'),
        ('error', 'second'),
        ('warning', 'first (3 more like it)'),
        ('warning', 'first'),
    ]
