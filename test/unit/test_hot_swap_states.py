"""Making a policy beside the one that serves: one at a time, the newest wish, no leftovers."""

import gc
import threading
import time
import weakref

import pytest

from sparkrt_ros.nodes.hot_swap import WAITING, Failure, HotSwap, Made, Maker
from sparkrt_ros.runtime.errors import BackendError

LIMIT_S = 10.0


class Product:
    """Stands for a policy in memory."""

    def __init__(self, wish):
        self.wish = wish
        self.freed = False


class Workshop:
    """Makes products stage by stage; a stage can be held up, or fail."""

    def __init__(self):
        self.begun = []
        self.products = []
        self.tidied = 0
        self.in_memory = 0
        self.most_in_memory = 0
        self.held = threading.Event()
        self.held.set()
        self.at_work = threading.Semaphore(0)
        self.failures = {}
        self.news = threading.Condition()
        self.threads = set()

    def make(self, wish, watch):
        self.threads.add(threading.get_ident())
        self.begun.append(wish)
        watch.stage('building')
        self.in_memory += 1
        self.most_in_memory = max(self.most_in_memory, self.in_memory)
        self.at_work.release()
        try:
            assert self.held.wait(LIMIT_S)
            watch.stage('warming')
            if wish in self.failures:
                raise self.failures[wish]
        except BaseException:
            self.in_memory -= 1
            raise
        self.products.append(Product(wish))
        return self.products[-1]

    def free(self, product):
        product.freed = True
        self.in_memory -= 1

    def tidy(self):
        self.tidied += 1

    def tell(self):
        with self.news:
            self.news.notify_all()

    def wait_for(self, condition):
        with self.news:
            assert self.news.wait_for(condition, LIMIT_S)


@pytest.fixture
def shop():
    return Workshop()


@pytest.fixture
def swap(shop):
    maker = Maker(make=shop.make, free=shop.free, tidy=shop.tidy)
    swap = HotSwap(maker, news=shop.tell, on_failure=pytest.fail, interval_s=0.0)
    yield swap
    shop.held.set()
    assert swap.join(timeout_s=LIMIT_S)


def outcome(swap, shop):
    """The next outcome, as the thread that is told the news would find it."""
    found = []

    def look():
        found.extend([result] if (result := swap.collect()) is not None else [])
        return bool(found)

    shop.wait_for(look)
    return found[0]


def test_a_wish_is_met_in_a_thread_that_goes_on_to_run_it(swap, shop):
    swap.want('bf16')
    made = outcome(swap, shop)
    assert isinstance(made, Made)
    assert (made.wish, made.product.wish) == ('bf16', 'bf16')
    assert made.thread.submit(threading.get_ident).result(LIMIT_S) in shop.threads
    assert (swap.wish, swap.stage) == (None, '')
    swap.retire(made.thread, last=lambda: shop.free(made.product))
    assert swap.wait_until_freed(limit_s=LIMIT_S)
    assert made.product.freed


def test_stages_are_told_as_they_come(swap, shop):
    shop.held.clear()
    swap.want('bf16')
    assert shop.at_work.acquire(timeout=LIMIT_S)
    assert (swap.wish, swap.stage) == ('bf16', 'building')
    assert swap.collect() is None
    shop.held.set()
    swap.retire(outcome(swap, shop).thread, last=lambda: None)


@pytest.mark.parametrize(
    ('error', 'reason', 'has_details'),
    [
        (BackendError('gate', found='cosine 0.1', expected='0.99'), 'gate: found cosine', False),
        (RuntimeError('CUDA out of memory'), 'RuntimeError: CUDA out of memory', True),
    ],
)
def test_a_failure_says_why_and_leaves_nothing(swap, shop, error, reason, has_details):
    shop.failures['bf16'] = error
    swap.want('bf16')
    failure = outcome(swap, shop)
    assert isinstance(failure, Failure)
    assert failure.wish == 'bf16'
    assert failure.reason.startswith(reason)
    assert bool(failure.details) is has_details
    assert swap.collect() is None
    assert swap.wait_until_freed(limit_s=LIMIT_S)
    assert (shop.tidied, shop.in_memory) == (1, 0)


def test_what_was_made_before_a_failure_is_not_kept_alive_by_it(swap, shop):
    kept = []

    def make(wish, watch):
        half = Product(wish)
        kept.append(weakref.ref(half))
        raise RuntimeError('out of memory')

    swap._maker = Maker(make=make, free=shop.free, tidy=shop.tidy)
    swap.want('bf16')
    failure = outcome(swap, shop)
    gc.collect()
    assert kept[0]() is None
    assert 'out of memory' in failure.reason


def test_a_newer_wish_ends_the_older_at_its_next_stage(swap, shop):
    shop.held.clear()
    swap.want('bf16')
    assert shop.at_work.acquire(timeout=LIMIT_S)
    swap.want('fp16')
    assert (swap.wish, swap.stage) == ('fp16', WAITING)
    shop.held.set()
    made = outcome(swap, shop)
    assert made.wish == 'fp16'
    assert [product.wish for product in shop.products] == ['fp16']
    assert shop.most_in_memory == 1
    swap.retire(made.thread, last=lambda: shop.free(made.product))


def test_the_same_wish_again_changes_nothing(swap, shop):
    shop.held.clear()
    swap.want('bf16')
    assert shop.at_work.acquire(timeout=LIMIT_S)
    swap.want('bf16')
    shop.held.set()
    made = outcome(swap, shop)
    assert shop.begun == ['bf16']
    swap.retire(made.thread, last=lambda: None)


def test_a_wish_that_is_dropped_after_it_was_met_is_freed(swap, shop):
    swap.want('bf16')
    shop.wait_for(lambda: shop.products and swap._build.done)
    swap.drop()
    assert swap.collect() is None
    assert swap.wait_until_freed(limit_s=LIMIT_S)
    assert shop.products[0].freed
    assert shop.in_memory == 0


def test_nothing_is_begun_until_what_was_retired_is_freed(swap, shop):
    swap.want('a')
    first = outcome(swap, shop)
    may_end = threading.Event()

    def free():
        assert may_end.wait(LIMIT_S)
        shop.free(first.product)

    swap.retire(first.thread, last=free)
    swap.want('b')
    assert (swap.stage, shop.begun) == (WAITING, ['a'])
    may_end.set()
    second = outcome(swap, shop)
    assert shop.begun == ['a', 'b']
    assert shop.most_in_memory == 1
    swap.retire(second.thread, last=lambda: shop.free(second.product))


def test_a_thousand_wishes_in_a_row_begin_few_and_the_last_is_met(shop):
    maker = Maker(make=shop.make, free=shop.free, tidy=shop.tidy)
    swap = HotSwap(maker, news=shop.tell, on_failure=pytest.fail, interval_s=0.2)
    threads = threading.active_count()
    begin_s = time.monotonic()
    for number in range(1000):
        swap.want(number)
        assert threading.active_count() <= threads + 3
    made = outcome(swap, shop)
    took_s = time.monotonic() - begin_s
    assert made.wish == 999
    assert len(shop.begun) <= 2 + took_s / 0.2
    assert shop.most_in_memory == 1
    swap.retire(made.thread, last=lambda: shop.free(made.product))
    assert swap.join(timeout_s=LIMIT_S)
    assert shop.in_memory == 0
    assert threading.active_count() == threads


def test_a_wish_that_waits_for_its_turn_is_given_up_at_once(shop):
    maker = Maker(make=shop.make, free=shop.free, tidy=shop.tidy)
    swap = HotSwap(maker, news=shop.tell, on_failure=pytest.fail, interval_s=3600.0)
    swap.want('a')
    first = outcome(swap, shop)
    swap.retire(first.thread, last=lambda: shop.free(first.product))
    swap.want('b')
    assert swap.join(timeout_s=LIMIT_S)
    assert shop.begun == ['a']


def test_the_end_waits_for_what_is_being_made_no_longer_than_asked(swap, shop):
    shop.held.clear()
    swap.want('bf16')
    assert shop.at_work.acquire(timeout=LIMIT_S)
    assert not swap.join(timeout_s=0.0)
    shop.held.set()
    assert swap.join(timeout_s=LIMIT_S)
    assert shop.in_memory == 0
