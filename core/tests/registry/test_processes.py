"""Plugins are loaded once a process, and are there in every child, forked or spawned."""

import multiprocessing

import pytest

COUNTING = """
import builtins
from specdec_core import hookimpl

builtins.specdec_test_imports = getattr(builtins, "specdec_test_imports", 0) + 1

@hookimpl
def specdec_make_proposer(ctx):
    return builtins.specdec_test_imports
"""


SCRIPT = """
import multiprocessing, os, sys
from specdec_core.registry.catalog import Catalog
from specdec_core.registry.loader import Registry

def count(catalog, queue):
    registry = Registry(catalog)
    for _ in range(2):
        loaded = registry.load(catalog.find("proposer", "alpha"))
    queue.put((os.getpid(), registry.call(loaded, "specdec_make_proposer", ctx="alpha")))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    catalog = Catalog.discover()
    count(catalog, queue)
    for _ in range(2):
        process = context.Process(target=count, args=(catalog, queue))
        process.start()
        process.join()
    answers = [queue.get() for _ in range(3)]
    print(len({pid for pid, _ in answers}), sorted(number for _, number in answers))
"""


@pytest.mark.parametrize("method", [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()])
def test_each_child_has_the_plugin_and_imports_it_once(site, tmp_path, method):
    site.proposer("alpha", COUNTING)
    script = tmp_path / "main.py"
    script.write_text(SCRIPT)
    done = site.run(str(script), method)
    assert done.stdout == "3 [1, 1, 1]\n", done.stderr
