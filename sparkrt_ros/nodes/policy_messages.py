"""The messages of the policy node, made and read."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time

from sparkrt.msg import ActionChunk as ActionChunkMessage
from sparkrt.msg import PolicyStatus, StreamerProgress
from sparkrt_ros.convert.time import fill_stamp, stamp_to_ns
from sparkrt_ros.nodes.pacing import Progress
from sparkrt_ros.nodes.policy_health import PolicyFacts
from sparkrt_ros.nodes.swap_rules import SwapReport
from sparkrt_ros.runtime.types import ActionChunk


def chunk_message(chunk: ActionChunk, *, session_id: int, now_ns: int) -> ActionChunkMessage:
    """The wire form of a chunk; see ActionChunk.msg."""
    rows = np.ascontiguousarray(chunk.actions, dtype=np.float64)
    message = ActionChunkMessage(
        dt=chunk.dt_s,
        epoch=chunk.epoch,
        chunk_id=chunk.chunk_id,
        session_id=session_id,
        joint_names=list(chunk.joint_names),
        rows=chunk.rows,
        data=array.array('d', rows.tobytes()),
        inference_time=chunk.inference_time_s,
        frozen_rows=chunk.frozen_rows,
        stream_names=list(chunk.sample_stamps_ns),
        stream_stamps=[time_message(stamp_ns) for stamp_ns in chunk.sample_stamps_ns.values()],
    )
    fill_stamp(message.header.stamp, now_ns)
    fill_stamp(message.observation_stamp, chunk.observation_stamp_ns)
    fill_stamp(message.received, chunk.received_ns)
    return message


def time_message(time_ns: int) -> Time:
    """``builtin_interfaces/Time`` of nanoseconds."""
    stamp = Time()
    fill_stamp(stamp, time_ns)
    return stamp


def read_progress(message: StreamerProgress, *, at_s: float) -> Progress:
    """``at_s``: of the pacing clock, when the message arrived."""
    return Progress(
        at_s=at_s,
        session_id=message.session_id,
        epoch=message.epoch,
        chunk_id=message.chunk_id,
        played_s=message.played,
        remaining_s=message.remaining,
        state=message.state,
        tick_ns=stamp_to_ns(message.tick),
        row=message.row,
    )


def status_message(facts: PolicyFacts, *, now_ns: int) -> PolicyStatus:
    """See PolicyStatus.msg; names of what serves are empty while no policy is loaded."""
    figures, receipt = facts.figures, facts.receipt
    streams = facts.streams.values()
    message = PolicyStatus(
        state=facts.state,
        reason=facts.reason,
        checkpoint=str(receipt.get('folder', '')),
        model=str(receipt.get('policy', '')),
        backend=str(receipt.get('backend', '')),
        precision=str(receipt.get('precision', '')),
        device=str(receipt.get('device', '')),
        mode=str(receipt.get('mode', '')),
        temporal_ensemble_coeff=float(receipt.get('temporal_ensemble_coeff') or 0.0),
        epoch=facts.epoch,
        chunks=figures.chunks,
        failures=figures.failures,
        refused=figures.refused,
        bad_messages=facts.bad_messages,
        stream_names=list(facts.streams),
        stream_ages=[stream.age_s for stream in streams],
        stream_rates=[facts.rates_hz.get(name, 0.0) for name in facts.streams],
        stream_received=[stream.received for stream in streams],
        stream_dropped=[stream.dropped for stream in streams],
        skew=figures.skew_s,
        inference_p50=figures.p50_s,
        inference_p99=figures.p99_s,
        preprocess_time=figures.preprocess_s,
        model_time=figures.model_s,
        postprocess_time=figures.postprocess_s,
        stage_names=list(figures.stages_s),
        stage_times=list(figures.stages_s.values()),
        load_time=facts.load_s,
        prompt=facts.prompt,
        prompt_refused=facts.prompt_refused,
        **_swap_fields(facts.swap),
    )
    fill_stamp(message.header.stamp, now_ns)
    return message


def _swap_fields(swap: SwapReport) -> dict[str, Any]:
    return {
        'swap_state': swap.state,
        'swap_text': swap.text,
        'swap_target': swap.target,
        'swaps': swap.done,
        'swaps_failed': swap.failed,
        'swap_time': swap.last_s,
    }
