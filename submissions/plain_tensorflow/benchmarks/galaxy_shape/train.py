"""galaxy_shape at mini scale, closed division, without a line of Cepheid's code.

    python train.py --data FOLDER --system NAME --output DIR --run K

makes run K (0 to 4) and leaves DIR/results/NAME/galaxy_shape-mini-closed/result_K.txt. FOLDER is
what `cepheid data galaxy_shape --scale mini` prepared: NumPy's files stamps.npy and labels.npy.
"""

import argparse
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from network import Adam, Network, mean_loss
from run_log import RunLog

SUBMITTER = "plain_tensorflow"
NONCE = "c9e1fd967facb115ffd633fea4f30f4dd5f89038e5d91dfd7704650f091af041"  # rules/rounds/v1.0.yaml
# From benchmarks/galaxy_shape/benchmark.yaml, scale mini; the digest is what `cepheid run --list`
# prints.
DEFINITION = "f04589579c3766e54317e665ef103df6f5ab425067866865aadff5da40f76e4d"
TRAIN, EVALUATION = 6000, 2000
EVAL_EVERY, MAX_SAMPLES = 3000, 72_000
TARGETS = {"e_rmse": 0.117, "nll": -1.97}
VALUES = {
    "global_batch_size": 32,
    "opt_name": "adam",
    "opt_base_learning_rate": 2.0e-3,
    "opt_end_learning_rate": 1.0e-5,
    "opt_learning_rate_warmup_samples": 2000,
    "opt_learning_rate_decay_samples": 42_000,
    "opt_learning_rate_decay_schedule": "cosine",
    "opt_adam_beta_1": 0.9,
    "opt_adam_beta_2": 0.999,
    "opt_adam_epsilon": 1.0e-7,
    "opt_gradient_clip_norm": 5.0,
    "data_augmentation": "flip_transpose",
}
BATCH = VALUES["global_batch_size"]
EVALUATION_BATCH = 250


def main() -> None:
    """One run, as rules/training.md tells it."""
    chosen = arguments()
    code = digest_of_code(Path(__file__).parent)
    seed = derived_seed(chosen.system, chosen.run)
    folder = chosen.output / "results" / chosen.system / "galaxy_shape-mini-closed"
    log = RunLog(folder / f"result_{chosen.run}.txt")
    with log.closed():
        identity(log, chosen.system)
        drop_caches(chosen.data)
        log.event("cache_clear", True)
        log.event("init_start")
        try:
            task = Task(seed)
            settings(log, seed, code, chosen.data, task)
            task.warm_up()
        except BaseException as error:
            log.event("init_aborted", f"{type(error).__name__}: {error}")
            raise
        log.event("init_stop")
        train(log, task, chosen.data)
        log.event("data_read", digest_of_data(chosen.data))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="One run of galaxy_shape at mini scale.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--system", required=True, help="name of the description in systems/")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--run", type=int, choices=range(5), required=True)
    return parser.parse_args()


def identity(log: RunLog, system: str) -> None:
    """Whose run of what this is (T14)."""
    log.event("submission_round", "v1.0")
    log.event("submission_org", SUBMITTER)
    log.event("submission_platform", system)
    log.event("submission_division", "closed")
    log.event("submission_benchmark", "galaxy_shape")
    log.event("submission_scale", "mini")


def settings(log: RunLog, seed: int, code: str, data: Path, task: "Task") -> None:
    """What this run uses, from the objects that it uses (T2)."""
    log.event("seed", seed, origin="derived")
    log.event("definition_digest", DEFINITION)
    log.event("code_digest", code)
    log.event("task_digest", code)
    log.event("data_digest", json.loads((data / "manifest.json").read_text())["digest"])
    log.event("train_samples", TRAIN)
    log.event("eval_samples", EVALUATION)
    log.event("model_parameters", sum(math.prod(weight.shape) for weight in task.network.weights))
    log.event("implementation", task.implementation)
    for key, value in VALUES.items():
        log.event(key, value)


def train(log: RunLog, task: "Task", data: Path) -> None:
    """The timed part: exactly one run_stop, whatever happens (T7)."""
    samples, status, reason = 0, "aborted", "broken off"
    log.event("run_start")
    try:
        task.open_data(data)
        for block, end in enumerate(block_ends(), start=1):
            log.event("block_start", block_num=block, samples_count=samples)
            loss = task.train(samples, end)
            if not math.isfinite(loss):
                reason = "the training loss is not finite"
                break
            samples = end
            log.event("block_stop", block_num=block, samples_count=samples, train_loss=loss)
            log.event("eval_start", samples_count=samples)
            metrics = task.evaluate()
            if not all(map(math.isfinite, metrics.values())):
                reason = "the quality is not finite"
                break
            told = {"samples_count": samples, "epoch_num": samples / TRAIN, "metrics": metrics}
            log.event("eval_accuracy", metrics["e_rmse"], **told)
            log.event("eval_stop", samples_count=samples)
            print(f"{samples:>7,} samples  {metrics}", flush=True)
            if all(metrics[name] <= target for name, target in TARGETS.items()):
                status, reason = "success", ""
                break
        else:
            reason = "target not reached within the budget"
    except BaseException as error:
        reason = f"broken off: {type(error).__name__}: {error}"
        raise
    finally:
        why = {"reason": reason} if reason else {}
        log.event("run_stop", status=status, samples_count=samples, **why)


def block_ends() -> Iterator[int]:
    """Samples at each evaluation: the first whole batch that completes a multiple (T8)."""
    for multiple in range(EVAL_EVERY, MAX_SAMPLES + 1, EVAL_EVERY):
        yield math.ceil(multiple / BATCH) * BATCH


class Task:
    """Network, optimizer and, once they are opened, data."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.network = Network(seed)
        betas = (VALUES["opt_adam_beta_1"], VALUES["opt_adam_beta_2"])
        self.optimizer = Adam(self.network.weights, *betas, VALUES["opt_adam_epsilon"])
        self._rate = tf.Variable(0.0)
        self.implementation = {
            "framework": f"tensorflow {tf.__version__}, without Keras",
            "device": "cpu",
            "precision": "bfloat16",
            "ranks": 1,
            "training_step": "graph",
        }

    def warm_up(self) -> None:
        """Trace both graphs on noise; what the step changed is put back (T6)."""
        changed = [*self.network.weights, *self.network.statistics, *self.optimizer.state]
        before = [variable.numpy() for variable in changed]
        noise = np.random.default_rng(0).normal(size=(EVALUATION_BATCH, 6, 64, 64))
        noise = noise.astype(np.float16)
        self._step(tf.constant(noise[:BATCH]), tf.zeros((BATCH, 2)))
        self._predict(tf.constant(noise))
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)

    def open_data(self, folder: Path) -> None:
        """The first rows train, the others evaluate."""
        self.stamps = np.load(folder / "stamps.npy", mmap_mode="r")
        labels = np.load(folder / "labels.npy", mmap_mode="r")
        self.labels = np.stack([labels["e1"], labels["e2"]], axis=1)
        assert len(self.labels) == TRAIN + EVALUATION

    def train(self, first: int, end: int) -> float:
        """Steps from ``first`` to ``end`` samples; the mean of their losses."""
        losses = []
        for position in range(first, end, BATCH):
            self._rate.assign(learning_rate(position + BATCH))
            losses.append(self._step(*map(tf.constant, self._batch(position))))
        return float(np.mean([float(loss) for loss in losses]))

    def evaluate(self) -> dict[str, float]:
        """All metrics of the definition, over the whole evaluation set."""
        squares = likelihood = inside_68 = inside_95 = 0.0
        for first in range(TRAIN, TRAIN + EVALUATION, EVALUATION_BATCH):
            rows = slice(first, first + EVALUATION_BATCH)
            mean, scale = self._predict(tf.constant(self.stamps[rows]))
            mean, scale = mean.numpy().astype(np.float64), scale.numpy().astype(np.float64)
            off = self.labels[rows] - mean
            white = off[:, 0] / scale[:, 0]
            radius = white**2 + ((off[:, 1] - scale[:, 1] * white) / scale[:, 2]) ** 2
            squares += float((off**2).sum())
            log_determinant = np.log(scale[:, 0] * scale[:, 2])
            likelihood += float((radius / 2 + log_determinant + math.log(2 * math.pi)).sum())
            inside_68 += float((radius < -2 * math.log(1 - 0.68)).sum())
            inside_95 += float((radius < -2 * math.log(1 - 0.95)).sum())
        return {
            "e_rmse": math.sqrt(squares / EVALUATION / 2),
            "nll": likelihood / EVALUATION,
            "coverage_68": inside_68 / EVALUATION,
            "coverage_95": inside_95 / EVALUATION,
        }

    def _batch(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Each epoch in an order of its own, each stamp in one of the eight orientations."""
        stamps = np.empty((BATCH, 6, 64, 64), np.float16)
        labels = np.empty((BATCH, 2), np.float32)
        for place in range(BATCH):
            epoch, number = divmod(position + place, TRAIN)
            order, orientations = self._epoch(epoch)
            row, orientation = order[number], orientations[number]
            stamp, (e1, e2) = self.stamps[row], self.labels[row]
            if orientation & 1:  # flipped in x
                stamp, e2 = stamp[:, :, ::-1], -e2
            if orientation & 2:  # flipped in y
                stamp, e2 = stamp[:, ::-1], -e2
            if orientation & 4:  # transposed
                stamp, e1 = stamp.swapaxes(1, 2), -e1
            stamps[place], labels[place] = stamp, (e1, e2)
        return stamps, labels

    def _epoch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if getattr(self, "_drawn", None) != number:
            draw = np.random.default_rng((self.seed, number))
            self._order = draw.permutation(TRAIN), draw.integers(8, size=TRAIN)
            self._drawn = number
        return self._order

    @tf.function
    def _step(self, stamps: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = mean_loss(*self.network(stamps, training=True), labels)
        gradients = tape.gradient(loss, self.network.weights)
        self.optimizer.step(gradients, VALUES["opt_gradient_clip_norm"], self._rate)
        return loss

    @tf.function
    def _predict(self, stamps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self.network(stamps, training=False)


def learning_rate(samples: int) -> float:
    """Of the step that completes so many samples: a linear warm-up, then half a cosine."""
    base, end = VALUES["opt_base_learning_rate"], VALUES["opt_end_learning_rate"]
    warm_up, decay = (VALUES[f"opt_learning_rate_{part}_samples"] for part in ("warmup", "decay"))
    if samples <= warm_up:
        return base * samples / warm_up
    share = min(1.0, (samples - warm_up) / (decay - warm_up))
    return end + (base - end) * (1 + math.cos(math.pi * share)) / 2


def derived_seed(system: str, run: int) -> int:
    """Nobody can choose it (T15)."""
    text = "\n".join((NONCE, SUBMITTER, system, "galaxy_shape-mini", str(run)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def digest_of_code(folder: Path) -> str:
    """Of all files here but the README, as S4 says."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != "README.md":
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(json.dumps([path.name, content]).encode())
    return digest.hexdigest()


def digest_of_data(folder: Path) -> str:
    """Of the bytes of all arrays as they are now (T27)."""
    manifest = json.loads((folder / "manifest.json").read_text())
    step, arrays = manifest["chunk_rows"], {}
    for name, entry in manifest["arrays"].items():
        rows = np.load(folder / f"{name}.npy", mmap_mode="r")
        chunks = [rows[first : first + step].tobytes() for first in range(0, len(rows), step)]
        digests = [hashlib.sha256(chunk).hexdigest() for chunk in chunks]
        arrays[name] = [entry["dtype"], entry["shape"], digests]
    told = [manifest["generator"], manifest["parameters"], step, arrays]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def drop_caches(folder: Path) -> None:
    """The system forgets the data's pages (T6)."""
    for path in folder.glob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
