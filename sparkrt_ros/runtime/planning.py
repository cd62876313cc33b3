"""Which form of a policy serves: the one asked for, if it can and proves itself, else the next.

Fidelity comes before speed: every form but the reference is compared with the reference before
it may serve. Refusals are kept, with their reasons, for the receipt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from sparkrt_ros.runtime.backends.backend_config import BackendConfig
from sparkrt_ros.runtime.backends.base import ExecutionBackend
from sparkrt_ros.runtime.backends.registry import make_backend
from sparkrt_ros.runtime.build_watch import UNWATCHED, BuildWatch
from sparkrt_ros.runtime.config import RuntimeConfig
from sparkrt_ros.runtime.cpu import BF16, cpu_flags
from sparkrt_ros.runtime.errors import BackendError
from sparkrt_ros.runtime.parity import Verdict, gate
from sparkrt_ros.runtime.policies.adapter import PolicyAdapter
from sparkrt_ros.runtime.precision.calibrating import CalibratableAdapter, calibrate
from sparkrt_ros.runtime.precision.calibration import Calibration
from sparkrt_ros.runtime.precision.samples import Samples
from sparkrt_ros.runtime.precision.tiers import TIERS
from sparkrt_ros.runtime.session import Session
from sparkrt_ros.runtime.threads import choose_threads

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way of running a policy."""

    backend: str
    precision: str

    @property
    def is_reference(self) -> bool:
        """Whether this is what everything else is compared with."""
        return self == REFERENCE

    def __str__(self) -> str:
        return f'{self.backend}, {self.precision}'


REFERENCE = Form(backend='eager', precision='fp32')
Build = Callable[[Form, PolicyAdapter, ExecutionBackend], Session]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The form that serves and what is known about it.

    refused: the forms that were asked for before it, with the reasons. verdict: of its gate;
    None for the reference. calibration: of a form that has one.
    """

    form: Form
    session: Session
    notes: tuple[str, ...] = ()
    refused: tuple[tuple[Form, str], ...] = ()
    verdict: Verdict | None = None
    calibration: Calibration | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def receipt(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            'refused': [{'form': str(form), 'reason': reason} for form, reason in self.refused],
            'notes': list(self.notes),
            'gate': None if self.verdict is None else asdict(self.verdict.worst),
            'calibration': None if self.calibration is None else self.calibration.receipt(),
            'seconds': dict(self.seconds),
        }


def candidates(config: RuntimeConfig, *, device: torch.device) -> list[Form]:
    """The forms to try, in order: as asked, then in wider tiers, then less and less clever."""
    backend = config.backend
    if backend == 'auto':
        backend = 'cudagraph' if device.type == 'cuda' else 'fused'
    precisions = [config.precision, 'fp32']
    if TIERS[config.precision].is_calibrated and (device.type == 'cuda' or BF16 & cpu_flags()):
        precisions.insert(1, 'bf16')
    wanted = [Form(backend=b, precision=p) for b in (backend, 'fused') for p in precisions]
    if backend == 'eager':
        wanted = wanted[:1]
    return [*dict.fromkeys(form for form in wanted if not form.is_reference), REFERENCE]


def make_plan(
    reference: PolicyAdapter,
    *,
    config: RuntimeConfig,
    device: torch.device,
    build: Build,
    samples: Samples | None = None,
    watch: BuildWatch = UNWATCHED,
) -> Plan:
    """Try the candidates until one serves; the reference always does, where it is accepted.

    build: makes a session from a form, its adapter and its backend.
    samples: what forms are calibrated with and judged by; synthetic ones when None.
    Raises BackendError, with the reasons, where no form serves that ``watch`` accepts.
    """
    samples = samples or Samples.synthetic(reference.capabilities)
    maker = _Maker(reference, build=build, config=config, device=device, samples=samples)
    refused: list[tuple[Form, str]] = []
    trusted = build(REFERENCE, reference, make_backend(BackendConfig(), device=device))
    forms = [f for f in candidates(config, device=device) if watch.accepts(*_names(f))]
    for form in forms:
        if form.is_reference:
            break
        try:
            plan = _try(form, trusted, maker, watch=watch)
        except BackendError as error:
            # Of a capture that failed the backend has told already.
            _refuse(refused, form, str(error), told=isinstance(error, CaptureFailed))
            continue
        if plan.verdict is not None and not plan.verdict.passed:
            _refuse(refused, form, f'gate failed: {plan.verdict.reason}')
            continue
        return replace(plan, refused=tuple(refused))
    if REFERENCE not in forms:
        raise _none_serves(config, refused)
    if config.num_threads == 0:
        choose_threads(trusted.warm_up, device=device)
    return Plan(form=REFERENCE, session=trusted, refused=tuple(refused))


@dataclass(frozen=True)
class _Made:
    """A form that can run, before it has been judged."""

    adapter: PolicyAdapter
    session: Session
    calibration: Calibration | None = None


class _Maker:
    """Makes the forms of one policy."""

    def __init__(
        self,
        reference: PolicyAdapter,
        *,
        build: Build,
        config: RuntimeConfig,
        device: torch.device,
        samples: Samples,
    ) -> None:
        self.config, self.device, self.samples = config, device, samples
        self._reference, self._build = reference, build

    def make(self, form: Form) -> _Made:
        """Raises BackendError where the form cannot serve."""
        tier = TIERS[form.precision]
        chosen = BackendConfig(
            kind=form.backend,
            compile_mode=self.config.compile_mode,
            allow_tf32=tier.allow_tf32,
        )

        def session(adapter: PolicyAdapter) -> Session:
            return self._build(form, adapter, make_backend(chosen, device=self.device))

        if tier.is_calibrated:
            return self._calibrate(form, session)
        plain = form.backend in ('eager', 'torchcompile')
        adapter = self._reference.fused(tier, plain_operators=plain)
        return _Made(adapter, session(adapter))

    def _calibrate(self, form: Form, session: Callable[[PolicyAdapter], Session]) -> _Made:
        if form.backend != 'fused':
            raise BackendError(
                f'precision {form.precision}',
                found=f'backend {form.backend}',
                expected='backend fused, on a CPU',
            )
        if not isinstance(self._reference, CalibratableAdapter):
            raise BackendError(
                f'precision {form.precision}',
                found=f'a {self._reference.capabilities.model_type} policy',
                expected='a policy with a form in that precision (act)',
            )
        made = calibrate(self._reference, self.samples, make_session=session)
        return _Made(made.adapter, made.session, made.calibration)


def _try(form: Form, trusted: Session, maker: _Maker, *, watch: BuildWatch) -> Plan:
    """Make a form, warm it up and compare it with the reference. Raises BackendError."""
    tier = TIERS[form.precision]
    start = time.perf_counter()
    made = maker.make(form)
    session = made.session
    built = time.perf_counter()
    watch.stage('warming')
    session.warm_up()
    _check_captured(form, session)
    if maker.config.num_threads == 0:
        choose_threads(session.warm_up, device=maker.device)
    warm = time.perf_counter()
    watch.stage('gating')
    verdict = gate(
        session.infer_normalized,
        trusted.infer_normalized,
        maker.samples.gate,
        min_cosine=tier.min_cosine,
        max_abs=tier.max_abs,
    )
    seconds = {'build': built - start, 'warm_up': warm - built}
    seconds['gate'] = time.perf_counter() - warm
    return Plan(
        form=form,
        session=session,
        notes=made.adapter.notes,
        verdict=verdict,
        calibration=made.calibration,
        seconds=seconds,
    )


def _check_captured(form: Form, session: Session) -> None:
    """Raise BackendError if the form is named for something that did not come about."""
    for name, region in session.report().items():
        if region.get('failed'):
            raise CaptureFailed(
                f'backend {form.backend}, region {name}',
                found=region['reason'],
                expected='a region that can be captured',
            )


def _names(form: Form) -> tuple[str, str]:
    return form.backend, form.precision


def _none_serves(config: RuntimeConfig, refused: list[tuple[Form, str]]) -> BackendError:
    reasons = '; '.join(f'{form}: {reason}' for form, reason in refused)
    return BackendError(
        f'backend {config.backend}, precision {config.precision}',
        found=reasons or 'no such form of this policy',
        expected='a form that serves',
        remedy='choose another backend or precision',
    )


class CaptureFailed(BackendError):
    """A region that was to be captured could not be."""


def _refuse(
    refused: list[tuple[Form, str]], form: Form, reason: str, *, told: bool = False
) -> None:
    refused.append((form, reason))
    _log.log(logging.INFO if told else logging.WARNING, '%s does not serve: %s', form, reason)
