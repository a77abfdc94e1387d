"""One host that makes the batches of all workers, against several in turn, with processes here.

Kumar et al. 2019 (arXiv:1909.09756), section 3, GNMT: with one host for all, which keeps lengths
alike, its input becomes the bottleneck of many workers; so hosts take turns. Here each host is a
process that sorts, pads and sends, and each worker one that waits for its share and then sleeps for
as long as a step takes. That is as long as a host takes to make FED shares, so that one host can
feed about FED workers on any machine. Lengths and tokens are drawn; nothing is read or trained.
"""

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np

from cepheid.measure.engine.turns import Measurement, Row, Subject, format_timing
from cepheid.reference.data.sentences.batches import (
    GLOBAL,
    ROUND_ROBIN,
    TOKEN,
    BatchOrder,
    Bucketing,
    Tokens,
    pad,
    sort_by_length,
)
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors

FED = 4
WORKERS, MOST_HOSTS = (1, 2, 4, 8, 16), 4
SENTENCES, WINDOW, STEPS, LEAD_IN_STEPS = 32, 16, 96, 16  # of a worker, of batches, of a turn
DRAWN, MEAN_TOKENS, LONGEST_TOKENS = 2**15, 25, 80
LOST = "a process of this measurement has ended; was there enough memory?"


@dataclass(frozen=True)
class Feeding:
    """So many workers, whose steps take ``step_seconds``, and the hosts that feed them in turn."""

    workers: int
    hosts: int
    step_seconds: float = 0.0

    def __str__(self) -> str:
        hosts = f"{self.hosts} hosts in turn" if self.hosts > 1 else "one host"
        return f"{hosts}, {self.workers} worker{'s' * (self.workers > 1)}"

    def time_step(self) -> float:
        """Return the mean seconds of a step of the slowest worker, with waiting."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        ways = [[context.Pipe(False) for _ in range(self.hosts)] for _ in range(self.workers)]
        results = [context.Pipe(False) for _ in range(self.workers)]
        workers = [
            context.Process(target=_work, args=(self, [into for into, _ in way], result[1]))
            for way, result in zip(ways, results, strict=True)
        ]
        hosts = [
            context.Process(target=_serve, args=(self, host, [way[host][1] for way in ways]))
            for host in range(self.hosts)
        ]
        processes = [*workers, *hosts]
        try:
            for process in processes:
                process.start()
            pairs = [pair for way in ways for pair in way]
            # Closed here, so that whoever waits for a process that is gone notices.
            for end in (*itertools.chain(*pairs), *(into for _, into in results)):
                end.close()
            return max(float(result.recv()) for result, _ in results)
        except EOFError as error:
            raise UserError(LOST) from error
        finally:
            for process in processes:
                process.kill()
                process.join()


def draw_sentences() -> Any:
    """Return drawn sentences with the fields of ``Pairs`` that ``pad`` reads, and their lengths."""
    random = np.random.default_rng(1)
    lengths = random.lognormal(np.log(MEAN_TOKENS), 0.5, (DRAWN, 2)).clip(2, LONGEST_TOKENS)
    lengths = lengths.astype(np.int64)
    sides = [Tokens(np.ones(each.sum(), TOKEN), each.cumsum()) for each in lengths.T]
    return SimpleNamespace(source=sides[0], target=sides[1], lengths=lengths)


def _serve(feeding: Feeding, host: int, workers: Sequence[Connection]) -> None:
    """Make this host's global batches one after the other, and send each worker its share."""
    pairs, batch = draw_sentences(), SENTENCES * feeding.workers
    way = ROUND_ROBIN if feeding.hosts > 1 else GLOBAL
    order = BatchOrder(pairs.lengths, 1, batch, Bucketing(way, WINDOW, feeding.hosts))
    for step in range(host, STEPS, feeding.hosts):
        rows = sort_by_length(pairs.lengths, order.take(step * batch))
        for number, worker in enumerate(workers):
            share = pad(pairs, rows[number :: len(workers)])
            worker.send((share.source, share.target))


def _work(feeding: Feeding, hosts: Sequence[Connection], result: Connection) -> None:
    """Take shares from the hosts in turn, and sleep for the time of a step after each."""
    started = 0.0
    for step in range(STEPS):
        if step == LEAD_IN_STEPS:
            started = time.perf_counter()
        hosts[step % len(hosts)].recv()
        time.sleep(feeding.step_seconds)
    result.send((time.perf_counter() - started) / (STEPS - LEAD_IN_STEPS))


def compare_hosts(subject: Subject) -> Measurement:
    """Compare steps of workers that one host feeds with those that several feed in turn."""
    step_seconds = FED * Feeding(1, 1).time_step()
    hosts = [count for count in (1, 2, MOST_HOSTS) if count <= max(2, usable_processors())]
    arms = {
        str(arm): arm
        for arm in (Feeding(count, each, step_seconds) for each in hosts for count in WORKERS)
    }
    rows, facts = [], {}
    for timing in subject.time("steps", {name: arm.time_step for name, arm in arms.items()}):
        kept = step_seconds / timing.median_seconds
        text = f"workers compute for {kept:.0%} of the time and wait for the rest"
        rows.append(Row(timing.label, text, format_timing(timing)))
        facts[timing.label] = {"seconds": timing.seconds, "share_of_computing": kept}
    return Measurement(rows, {"step_seconds": step_seconds, **facts})
