"""How long a click takes in the explorer with 1,000 patterns, measured in the browser from the click to the picture.

Runs JupyterLab with a headless Chromium (Debian's ``chromium``, and ``pip install playwright``) on a study of the two
example models of which every pattern that one of them holds is mined. A pause stands between two clicks, as with a
person. Prints one line of JSON: median and largest milliseconds of each action, and the load of the machine before. The
goal is a median below 100.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from browser import browser, copy_notebook, jupyterlab  # noqa: E402

from sortlib.mining import mine  # noqa: E402
from sortlib.pipeline import complete  # noqa: E402
from sortlib.study import Study, load_config  # noqa: E402

# The page does one action, waits until what it asks for is drawn and painted, and tells how long that took.
MEASURE = """async ([kind, number]) => {
  const root = document.querySelector(".sl-explorer"), list = root.querySelector(".sl-list");
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const changed = (test) => new Promise((done) => {
    const look = () => test() && (observer.disconnect(), done());
    const observer = new MutationObserver(look);
    observer.observe(root, { attributes: true, childList: true, characterData: true, subtree: true });
    look();
  });
  const ids = (row) => row.title.split("\\n")[1].split(",")[0];
  const act = {
    pattern: () => {
      const row = list.querySelectorAll(".sl-row[aria-selected=false]")[number % 6], id = ids(row);
      row.click();
      return () => root.dataset.shown.startsWith(`${id} `) && root.dataset.pattern === id;
    },
    node: () => {
      const nodes = [...root.querySelectorAll(".sl-node[aria-pressed=false]")], node = nodes[number % nodes.length];
      node.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return () => root.dataset.shown.endsWith(` ${node.dataset.node}`);
    },
    case: () => {
      const before = root.dataset.shown;
      root.querySelector("[aria-label='Next case']").click();
      return () => root.dataset.shown !== before;
    },
    sort: () => {
      const button = root.querySelectorAll(".sl-head")[number % 5], before = [...root.querySelectorAll(".sl-head")]
        .map((head) => head.dataset.sort).join();
      button.click();
      return () => [...root.querySelectorAll(".sl-head")].map((head) => head.dataset.sort).join() !== before;
    },
    scroll: () => {
      list.scrollTop = (number * 997) % list.scrollHeight;
      return () => {
        const place = Math.floor(list.scrollTop / 42);
        return Boolean(list.querySelector(`[data-place='${place}']`));
      };
    },
  };
  const start = performance.now();
  await changed(act[kind]());
  await painted();
  return performance.now() - start;
}"""


def make_study(directory: Path, count: int) -> Study:
    """A study of the two example models with ``count`` patterns, of which the first twenty are tested."""
    config = load_config("tiny")
    study = complete(Study.create(config, directory), "mine", progress=False)
    patterns = sorted(mine(study.graphs, min_support=1, max_nodes=7), key=lambda p: (-p.support, p.id))[:count]
    study.save_patterns(patterns)
    study.forget("patterns")
    return complete(study, "run", progress=False)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--patterns", type=int, default=1000)
    options.add_argument("--clicks", type=int, default=20)
    options.add_argument("--pause", type=int, default=200, help="milliseconds between two clicks")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, home = Path(folder, "notebooks"), Path(folder, "jupyter")
        root.mkdir(), home.mkdir()
        study = make_study(Path(folder, "study"), given.patterns)
        tested = study.cases[0].pattern
        copy_notebook("08-explore", root, study=str(study.directory), pattern_id=tested)
        with jupyterlab(root, home) as address, browser() as open_page:
            watched = open_page()
            errors = watched.run_notebook(address("08-explore"))
            watched.page.locator(".sl-explorer[data-shown]").wait_for(timeout=20000)
            load = round(os.getloadavg()[0], 1)
            found = {
                "patterns": len(study.patterns),
                "load": load,
                "clicks": given.clicks,
                "pause_ms": given.pause,
                "errors": len(errors + watched.errors),
            }
            for kind in ("node", "case", "pattern", "sort", "scroll"):
                times = []
                for number in range(given.clicks):
                    times.append(watched.page.evaluate(MEASURE, [kind, number]))
                    watched.page.wait_for_timeout(given.pause)
                found[kind] = {"median_ms": round(statistics.median(times), 1), "largest_ms": round(max(times), 1)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
