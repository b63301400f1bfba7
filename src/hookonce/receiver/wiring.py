"""Creates and connects the dependencies of one receiver."""

from __future__ import annotations

from collections.abc import Iterable

from ..delivery.attempts import Attempts
from ..delivery.calls import Threads
from ..delivery.dependencies import Dependencies, HandledKeeper
from ..delivery.ignored import IgnoredTypes
from ..delivery.pipeline import Pipeline
from ..http.health import ReadinessCheck
from ..inbox.dead_letters import DeadLetters
from ..inbox.handled import HandledEvents
from ..inbox.intake import InboxIntake
from ..inbox.waiting import WaitingEvents
from ..routing.registration import Registration, application_of
from ..routing.table import HandlerTable
from ..stores.activity import ActivityStore
from ..stores.applications import Application, RegisteringStore
from ..stores.handled import HandledStore
from ..stores.protocols import BatchingStore, InboxStore, Store
from ..stores.reconciling import ReconcilingStore
from ..verification.secrets import new_secret
from ..verification.signature import PartsVerifier
from ..watching.absent_handlers import AbsentHandlers
from ..watching.activity import Reporter
from ..watching.disabling import DisableWatch
from ..watching.log import AttemptLog
from ..watching.observers import Observers
from ..watching.records import BatchFlushed, Observer
from ..watching.refusals import RefusalWatch
from ..watching.rotation import RotationWatch
from ..watching.store_failures import StoreFailures
from ..watching.unreadable import UnreadableWatch
from ..watching.watch import AnswerWatch
from .lifetime import Lifetime
from .settings import ReceiverSettings
from .trials import Trials
from .workload import Workload


class Wiring:
    """Creates and connects the dependencies of one receiver.

    ``Receiver.copy`` makes a new wiring; the doctor exchanges the wirings of two receivers.

    Args:
        settings: the settings of the receiver.
        handler_table: the handlers.
        observers: notified of every step, in addition to the built-in ones.

    Raises:
        SecretError: a secret cannot be used, or there is none.
        ValueError: the tolerance cannot be used.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        handler_table: HandlerTable,
        observers: Iterable[Observer] = (),
    ) -> None:
        store, limits, clock = settings.store, settings.limits, settings.clock
        self.settings = settings
        self._handler_table = handler_table
        verifier = PartsVerifier(
            settings.secrets.source,
            sender=settings.sender,
            tolerance=settings.tolerance_seconds,
            clock=clock,
        )
        self.rotation: RotationWatch = RotationWatch(
            settings.current_secrets, clock, settings.sender.rules
        )
        self.disabling: DisableWatch = DisableWatch(clock, settings.sender.rules)
        self.refusals: RefusalWatch = RefusalWatch(clock)
        unreadable, store_failures = UnreadableWatch(clock), StoreFailures()
        self.answers: AnswerWatch = AnswerWatch(
            self.rotation, self.disabling, self.refusals, unreadable, store_failures, clock
        )
        attempts = () if settings.inbox is None else (AttemptLog(clock),)
        self.observers: Observers = Observers([self.answers, *attempts, *observers])
        inbox_store = store if settings.inbox and isinstance(store, InboxStore) else None
        keeper, keeping = None, settings.keeping
        if keeping is not None and isinstance(store, HandledStore):
            keeper = HandledKeeper(store, keeping)
        dependencies = Dependencies(
            endpoint=settings.endpoint,
            store=store,
            inbox=inbox_store,
            handler_table=handler_table,
            rules=settings.sender.countable_rules,
            limits=limits,
            absent=AbsentHandlers(settings.sender.rules),
            clock=clock,
            observers=self.observers,
            threads=Threads(limits.threads),
            keeper=keeper,
        )
        if isinstance(store, BatchingStore):
            store.flushes.add(self._note_flush)
        self.attempts: Attempts = Attempts(dependencies)
        self.intake: InboxIntake | None = None
        self.waiting: WaitingEvents | None = None
        if settings.inbox is not None and inbox_store is not None:
            self.waiting = WaitingEvents(store=inbox_store, endpoint=settings.endpoint)
            self.intake = InboxIntake(
                dependencies,
                store=inbox_store,
                waiting=self.waiting,
                settings=settings.inbox,
                attempts=self.attempts,
            )
        self.ignored: IgnoredTypes = IgnoredTypes(
            store if isinstance(store, ReconcilingStore) else None,
            settings.endpoint,
            limits.store_seconds,
        )
        self.pipeline: Pipeline = Pipeline(
            dependencies,
            verifier=verifier,
            sender=settings.sender,
            attempts=self.attempts,
            intake=self.intake,
            ignored=self.ignored,
        )
        # The receiver signs its backfills with a secret of its own: a public key cannot sign.
        self.own_secret: str = new_secret()
        self.backfills: Pipeline = Pipeline(
            dependencies,
            verifier=PartsVerifier(self.own_secret, sender=settings.sender, clock=clock),
            sender=settings.sender,
            attempts=self.attempts,
            intake=self.intake,
            ignored=self.ignored,
        )
        self.dead: DeadLetters = DeadLetters(dependencies, store=store, attempts=self.attempts)
        self.handled: HandledEvents | None = None
        if keeping is not None and isinstance(store, HandledStore):
            self.handled = HandledEvents(
                dependencies, store=store, attempts=self.attempts, seconds=keeping.seconds
            )
        self.trials: Trials = Trials(dependencies, store)
        registration = Registration(
            store if isinstance(store, RegisteringStore) else None,
            settings.endpoint,
            self._application,
        )
        self.workload: Workload = Workload(
            settings.endpoint,
            self.attempts,
            None if settings.inbox is None else settings.inbox.concurrency,
        )
        self.lifetime: Lifetime = Lifetime(
            dependencies=dependencies,
            attempts=self.attempts,
            store=store,
            intake=self.intake,
            registration=registration,
            ignored=self.ignored,
            workload=self.workload,
            reporter=self._reporter(store),
        )
        self.readiness: ReadinessCheck = ReadinessCheck(
            dependencies,
            self.attempts,
            store=store,
            watches=(
                self.disabling.warnings,
                self.refusals.warnings,
                unreadable.warnings,
                self.rotation.warnings,
                settings.secrets_fault,
                self.attempts.loop_monitor.warnings,
                dependencies.absent.warnings,
            ),
            registration=registration,
            prepare=self.lifetime.prepare,
            inbox=None if self.intake is None else self.intake.problem,
            has_separate_workers=settings.inbox is not None and not settings.inbox.embedded,
            secrets=settings.current_secrets,
            refusals=lambda: self.refusals.current,
            store_problem=store_failures.problem,
        )

    def _reporter(self, store: Store) -> Reporter | None:
        if not isinstance(store, ActivityStore):
            return None
        return Reporter(
            store,
            endpoint=self.settings.endpoint,
            workload=self.workload.report,
            observers=self.observers,
            store_seconds=self.settings.limits.store_seconds,
            clock=self.settings.clock,
        )

    def _application(self) -> Application | None:
        settings = self.settings
        try:
            secrets = settings.current_secrets()
            return application_of(self._handler_table.handlers, secrets, settings.endpoint)
        except Exception:  # noqa: BLE001 - the next delivery reports the error of the secrets
            return None

    def _note_flush(self, calls: int, seconds: float) -> None:
        store = type(self.settings.store).__name__
        self.observers.notify_of(BatchFlushed, store, calls, seconds)
