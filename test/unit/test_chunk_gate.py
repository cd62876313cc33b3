"""Which chunks may leave."""

import threading

from sparkrt_ros.nodes.chunk_gate import ChunkGate


def passes(gate, epoch):
    sent = []
    assert gate.let_pass(epoch, lambda: sent.append(1)) is bool(sent)
    return bool(sent)


def test_closed_at_first_open_in_a_new_epoch():
    gate = ChunkGate()
    assert not passes(gate, gate.epoch)
    before = gate.epoch
    gate.open()
    assert gate.is_open
    assert gate.epoch > before
    assert passes(gate, gate.epoch)
    assert not passes(gate, before)
    gate.close()
    assert not passes(gate, gate.epoch)


def test_a_pause_holds_back_and_ends_with_resume_or_close():
    gate = ChunkGate()
    gate.open()
    gate.pause()
    assert gate.is_paused
    assert not gate.is_open
    assert not passes(gate, gate.epoch)
    gate.resume()
    assert passes(gate, gate.epoch)
    gate.pause()
    gate.close()
    assert not gate.is_paused


def test_what_was_begun_before_a_reset_never_passes():
    gate = ChunkGate()
    gate.open()
    begun = gate.epoch
    assert gate.raise_epoch() == begun + 1
    assert not passes(gate, begun)


def test_close_waits_for_a_chunk_that_is_leaving():
    gate = ChunkGate()
    gate.open()
    leaving, go, closed = threading.Event(), threading.Event(), threading.Event()

    def publish():
        leaving.set()
        assert go.wait(10.0)
        assert not closed.is_set()

    publisher = threading.Thread(target=gate.let_pass, args=(gate.epoch, publish))
    publisher.start()
    assert leaving.wait(10.0)
    closer = threading.Thread(target=lambda: (gate.close(), closed.set()))
    closer.start()
    go.set()
    publisher.join(10.0)
    closer.join(10.0)
    assert closed.is_set()
