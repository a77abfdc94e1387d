"""What every process that tests fork has loaded already; only the fork server imports this."""

import contextlib
import gc
import importlib
import inspect
import sys

from cepheid.rules import definition, events, findings, rounds

MODULES = (
    "torch",
    "torch._dynamo",  # an optimizer imports it when it is made, for more than a second
    "torch.distributed",
    "matplotlib.figure",
    "hypothesis",
    "jsonschema",
    "pytest",
    "rich.console",
    "scipy.stats",
    "mlperf_logging.mllog",
    *(f"cepheid.benchmarks.{name}.task" for name in definition.names()),
    "cepheid.tools.cli",
    "cepheid.tools.run_benchmark",
    "cepheid.compliance.checks",  # these two: what ranks of the contract suite call imports them
    "tests.prepared",
    "tests.test_benchmark_contract",  # ranks call its functions, and it reads all definitions
    "tests.benchmarks.test_kfac",
)

for module in MODULES:
    with contextlib.suppress(ImportError):  # an extra is missing; its tests are skipped
        importlib.import_module(module)
# What any run reads and keeps: texts of findings, the round, and, for mllog, where modules lie.
findings.load_codes()
rounds.load()
events.read_nonce()
inspect.getmodule(sys._getframe())
gc.freeze()  # a collection in a forked process would copy every page
