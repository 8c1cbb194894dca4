// The explorer in the browser: draws what Python has put into the model, and tells it what was chosen.
// Plain DOM and SVG; all text is set as text, never as HTML. No request leaves the page.

const ROW = 42; // height of a row of the list in pixels, as in explorer.css
const SPARE = 8; // rows drawn above and below what is seen
const SVG = "http://www.w3.org/2000/svg";
let instances = 0;

function make(space, name, attributes, children) {
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}
const html = (name, attributes = {}, ...children) => make(null, name, attributes, children);
const svg = (name, attributes = {}, ...children) => make(SVG, name, attributes, children);

const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

function rateLimited(milliseconds, action) {
  let timer = null;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

// ---- the list of patterns ----

function patternList(model, choose) {
  const id = `sl-${(instances += 1)}`;
  const heads = Object.entries({ calls: "Calls", nodes: "Size", support: "Support", largest: "|a-b|", verdict: "Verdict" });
  const count = html("div", { class: "sl-count", role: "status" });
  const spacer = html("div", { class: "sl-spacer" });
  const list = html("div", {
    class: "sl-list", role: "listbox", tabindex: "0", "aria-label": "Patterns",
    on: { scroll: () => requestAnimationFrame(drawRows), keydown: pressed, click: clicked },
  }, spacer);
  const buttons = heads.map(([key, name]) =>
    html("button", { type: "button", class: "sl-head", on: { click: () => sortBy(key) } }, name));
  const fields = filterFields();
  let active = 0; // place in the list
  let edited = false; // the filter holds what Python does not know yet
  const send = rateLimited(60, choose); // an arrow key that is held down

  function filterFields() {
    const { apis, verdicts } = model.get("_choices");
    const number = (key, name) => html("label", {}, name,
      html("input", { type: "number", min: "0", name: key, class: "sl-number" }));
    const form = html("form", { class: "sl-filter", "aria-label": "Filter", on: { submit: (e) => e.preventDefault() } },
      html("label", { class: "sl-wide" }, "API",
        html("input", { name: "api", list: `${id}-apis`, placeholder: "conv2d add", spellcheck: "false" })),
      html("datalist", { id: `${id}-apis` }, apis.map((api) => html("option", { value: api }))),
      number("min_nodes", "Size from"), number("max_nodes", "to"), number("min_support", "Support from"),
      html("label", {}, "Verdict", html("select", { name: "verdict" }, html("option", { value: "" }, "any"),
        verdicts.map((verdict) => html("option", { value: verdict }, verdict)))));
    const apply = rateLimited(120, () => {
      edited = false;
      const given = {};
      for (const [key, value] of new FormData(form)) if (value !== "") given[key] = /^m/.test(key) ? Number(value) : value;
      model.set("filter", given);
      model.save_changes();
    });
    form.addEventListener("input", () => {
      edited = true;
      apply();
    });
    return form;
  }

  function sortBy(key) {
    const now = model.get("sort");
    const first = key === "calls" ? key : `-${key}`; // names from a, numbers and verdicts from the largest
    model.set("sort", now === first ? (first === key ? `-${key}` : key) : first);
    model.save_changes();
  }

  function drawRows() {
    const rows = model.get("_rows"), shown = model.get("_shown"), chosen = model.get("pattern");
    const from = Math.max(0, Math.floor(list.scrollTop / ROW) - SPARE);
    const to = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + SPARE);
    spacer.style.height = `${shown.length * ROW}px`;
    spacer.replaceChildren(...shown.slice(from, to).map((number, step) => {
      const row = rows[number], place = from + step;
      const difference = row.largest === null ? "" : row.largest === 0 ? "0" : row.largest.toExponential(1);
      return html("div", {
        role: "option", id: `${id}-${place}`, class: "sl-row", "data-place": place, style: `top:${place * ROW}px`,
        "aria-selected": row.id === chosen ? "true" : "false", "aria-setsize": shown.length, "aria-posinset": place + 1,
        "aria-label": `${row.calls}; ${row.nodes} calls, in ${row.support} models, ${row.cases} cases, ${row.verdict}`,
        title: `${row.calls}\n${row.id}, ${row.cases} cases run`,
      },
      html("span", { class: "sl-calls" }, row.calls), html("span", {}, counted(row.nodes, "call")),
      html("span", {}, counted(row.support, "model")), html("span", {}, difference),
      html("span", { class: "sl-verdict", "data-verdict": row.verdict }, row.verdict));
    }));
    const drawn = active >= from && active < to && shown.length;
    if (drawn) list.setAttribute("aria-activedescendant", `${id}-${active}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function reveal() {
    const top = active * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  }

  function pressed(event) {
    const last = model.get("_shown").length - 1, page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || last < 0) return;
    event.preventDefault();
    active = Math.min(last, Math.max(0, active + steps[event.key]));
    go(send);
  }

  function clicked(event) {
    const row = event.target.closest(".sl-row");
    if (!row) return;
    active = Number(row.dataset.place);
    go(choose);
  }

  function go(tell) {
    const row = model.get("_rows")[model.get("_shown")[active]];
    for (const other of spacer.children) other.setAttribute("aria-selected", String(Number(other.dataset.place) === active));
    reveal();
    tell(row.id);
  }

  function draw() {
    const rows = model.get("_rows"), shown = model.get("_shown"), sort = model.get("sort");
    const filter = model.get("filter"), chosen = model.get("pattern");
    for (const input of fields.elements) {
      const value = String(filter[input.name] ?? "");
      if (input.name && !edited && input !== document.activeElement && input.value !== value) input.value = value;
    }
    heads.forEach(([key], number) => {
      const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : "none";
      buttons[number].dataset.sort = direction;
      buttons[number].setAttribute("aria-label", `Sort by ${key}${direction === "none" ? "" : `, now ${direction}`}`);
    });
    const all = rows.length.toLocaleString("en");
    const part = shown.length === rows.length ? "" : `${shown.length.toLocaleString("en")} of `;
    count.textContent = `${part}${all} patterns`;
    const place = shown.findIndex((number) => rows[number].id === chosen);
    active = place >= 0 ? place : Math.min(active, Math.max(0, shown.length - 1));
    spacer.style.height = `${shown.length * ROW}px`;
    if (place >= 0) reveal();
    drawRows();
  }

  const element = html("section", { class: "sl-side", "aria-label": "List of patterns" }, fields, count,
    html("div", { class: "sl-heads" }, html("span", { class: "sl-faint" }, "Sort by"), buttons), list);
  return { element, draw };
}

// ---- the graph ----

function graph(model, chooseNode) {
  const id = `sl-${(instances += 1)}`;
  const holder = html("div", { class: "sl-graph" });
  const legend = html("div", { class: "sl-legend" });
  let nodes = [], boxes = [], links = [];

  function draw() {
    const picture = model.get("_view").picture, focused = nodes.indexOf(document.activeElement);
    ({ boxes, links } = picture);
    const pad = 8;
    nodes = boxes.map((box, number) => drawNode(box, number));
    holder.replaceChildren(svg("svg", {
      width: picture.width + 2 * pad, height: picture.height + 2 * pad, role: "group",
      "aria-label": `Graph of ${boxes.length} calls; arrow keys move along it`,
      viewBox: `${-pad} ${-pad} ${picture.width + 2 * pad} ${picture.height + 2 * pad}`,
    },
    svg("defs", {}, svg("marker", {
      id: `${id}-tip`, viewBox: "0 0 8 8", refX: "7.5", refY: "4", markerWidth: "7", markerHeight: "7",
      markerUnits: "userSpaceOnUse", orient: "auto",
    }, svg("path", { d: "M0 0.5L8 4L0 7.5z", class: "sl-tip" }))),
    links.map((link) => svg("path", { d: link.path, class: "sl-link", "marker-end": `url(#${id}-tip)` })),
    links.map(drawLabel), nodes));
    legend.replaceChildren(...picture.legend.map((item) => html("span", { class: "sl-key" },
      "face" in item ? html("span", {
        class: item.face ? "sl-patch" : "sl-patch sl-empty",
        style: item.face ? `background:${item.face};border-width:${item.thick > 1 ? 2 : 1}px` : null,
      }) : null, item.text)));
    mark();
    if (focused >= 0 && nodes[focused]) nodes[focused].focus();
  }

  function drawLabel(link) {
    const longest = Math.max(...link.lines.map((line) => line.length), 0);
    return svg("g", { class: "sl-label", transform: `translate(${link.x} ${link.y})` },
      svg("rect", {
        x: -longest * 2.9 - 2, y: -5.8 * link.lines.length, width: longest * 5.8 + 4, height: 11.6 * link.lines.length,
      }),
      link.lines.map((line, row) => svg("text", {
        y: (row - (link.lines.length - 1) / 2) * 11.5 + 3.2,
        class: link.strong && row === link.lines.length - 1 ? "sl-strong" : null,
      }, line)));
  }

  function drawNode(box, number) {
    const middle = box.y + box.height / 2;
    return svg("g", {
      class: box.empty ? "sl-node sl-empty" : "sl-node", role: "button", tabindex: "-1", "aria-label": box.said,
      "data-node": number,
      on: {
        click: () => {
          nodes[number].focus();
          chooseNode(number);
        },
        keydown: (event) => pressed(event, number),
      },
    },
    svg("rect", { class: "sl-ring", x: box.x - 5, y: box.y - 5, width: box.width + 10, height: box.height + 10, rx: 10 }),
    svg("rect", { class: "sl-box", x: box.x, y: box.y, width: box.width, height: box.height, rx: 6.7, fill: box.face,
      "stroke-width": box.thick * 1.3 }),
    box.lines.map((line, row) => svg("text", {
      x: box.x + box.width / 2, y: middle + (row - (box.lines.length - 1) / 2) * 15.8 + 4.2, fill: box.ink,
      class: row ? null : "sl-name",
    }, line)));
  }

  const centre = (box) => [box.x + box.width / 2, box.y + box.height / 2];

  // Up and down along the edges, left and right within a layer; where there is none, the nearest that way.
  function neighbour(number, key) {
    const [x, y] = centre(boxes[number]);
    const vertical = key === "ArrowUp" || key === "ArrowDown", sign = key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1;
    const near = new Set(links.filter((link) => (sign > 0 ? link.src : link.dst) === number)
      .map((link) => (sign > 0 ? link.dst : link.src)));
    let best = null, least = Infinity;
    boxes.forEach((box, other) => {
      const [otherX, otherY] = centre(box);
      const along = sign * (vertical ? otherY - y : otherX - x), across = Math.abs(vertical ? otherX - x : otherY - y);
      if (other === number || along <= 1) return;
      const distance = along + 2 * across + (vertical && near.has(other) ? 0 : 10000);
      if (distance < least) [best, least] = [other, distance];
    });
    return best;
  }

  function pressed(event, number) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      chooseNode(number);
    } else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = neighbour(number, event.key);
      if (next !== null) {
        nodes.forEach((node, other) => node.setAttribute("tabindex", other === next ? "0" : "-1"));
        nodes[next].focus();
      }
    }
  }

  function mark() {
    const chosen = model.get("node");
    nodes.forEach((node, number) => {
      node.setAttribute("aria-pressed", String(number === chosen));
      node.setAttribute("tabindex", number === chosen ? "0" : "-1");
    });
  }

  return { element: html("div", { class: "sl-canvas" }, holder, legend), draw, mark };
}

// ---- one call ----

function table(columns, rows, caption) {
  return html("div", { class: "sl-scroll" }, html("table", {}, caption ? html("caption", {}, caption) : null,
    html("thead", {}, html("tr", {}, columns.map((name) => html("th", { scope: "col" }, name)))),
    html("tbody", {}, rows.map((row) => html("tr", {}, row.map((cell, number) =>
      html(number ? "td" : "th", number ? {} : { scope: "row" }, cell)))))));
}

function histogram(shown, name) {
  const { bars, line } = shown, width = 240, height = 72, top = Math.max(...bars, ...line, 1e-9);
  const step = width / bars.length;
  const y = (share) => height - (share / top) * (height - 4);
  const outline = line.map((share, number) => `V${y(share).toFixed(1)}H${((number + 1) * step).toFixed(1)}`).join("");
  return html("figure", {},
    svg("svg", { viewBox: `0 -2 ${width} ${height + 4}`, class: "sl-histogram", role: "img",
      "aria-label": `Histogram of ${name}, from ${shown.low} to ${shown.high}` },
    bars.map((share, number) => svg("rect", {
      x: number * step + 0.5, y: y(share), width: Math.max(0.5, step - 1), height: height - y(share),
    })),
    svg("path", { d: `M0 ${height}${outline}V${height}` }),
    svg("path", { class: "sl-axis", d: `M0 ${height}H${width}` })),
    html("div", { class: "sl-ends" }, html("span", {}, shown.low), html("span", {}, shown.high)));
}

function detail(model) {
  const element = html("section", { class: "sl-detail", "aria-label": "The chosen call", "aria-live": "polite" });
  const card = (title, ...content) => html("div", { class: "sl-card" }, html("h4", {}, title), ...content);
  const pairs = (rows) => html("dl", {}, rows.map(([name, value, meaning]) =>
    [html("dt", { title: meaning }, name), html("dd", {}, value)]));

  function verdicts(shown) {
    return shown.map((item) => html("p", { class: "sl-judgement" }, html("b", {}, `${item.rule} rule: `),
      html("span", { class: "sl-verdict", "data-verdict": item.verdict }, item.verdict),
      item.meaning ? html("span", { class: "sl-faint" }, ` (${item.meaning})`) : null, html("br"), item.reason));
  }

  function input(shown) {
    const said = html("p", {}, html("b", {}, shown.name), `: ${shown.origin}`), { values } = shown;
    if (!values) return said;
    return html("div", { class: "sl-input" }, said,
      values.note ? html("p", { class: "sl-faint" }, values.note) : null,
      !values.summary.length ? null : html("div", { class: "sl-pair" },
        table(["", "recorded", "drawn"].slice(0, values.summary[0].length), values.summary),
        values.histogram ? histogram(values.histogram, shown.name) : null));
  }

  function outputs(shown) {
    const said = "bars: reference; line: candidate on the reference's values; values other than 0";
    return [table(shown.columns, shown.rows), !shown.histogram ? null : html("div", { class: "sl-both" },
      html("p", { class: "sl-faint" }, said), histogram(shown.histogram, "both outputs"))];
  }

  let before = ""; // what is drawn, to draw nothing twice

  // Draws the chosen call once it is there; tells pattern, case and call that are drawn now.
  function draw() {
    const { pattern, case: key, calls } = model.get("_details"), view = model.get("_view"), node = model.get("node");
    if (pattern !== view.pattern || key !== view.case || !calls[node]) return null;
    const shown = calls[node], now = JSON.stringify(shown), drawn = `${pattern} ${key} ${node}`;
    if (now === before) return drawn;
    before = now;
    const place = shown.source.place.split("/").flatMap((part, number) => number ? ["/", html("wbr"), part] : [part]);
    const source = [html("h4", {}, "Source line in the model"), html("p", {}, place),
      shown.source.code ? html("pre", {}, html("code", {}, shown.source.code)) : null];
    const legend = html("p", { class: "sl-faint" }, "bars: drawn; line: recorded; values other than 0");
    element.replaceChildren(html("h3", {}, shown.title), html("div", { class: "sl-cards" },
      shown.outputs ? card("Verdict", verdicts(shown.verdicts), pairs(shown.differences), source) : null,
      shown.outputs ? card("Both outputs", outputs(shown.outputs)) : null,
      shown.outputs ? card("Generated values",
        shown.inputs.some((item) => item.values?.histogram) ? legend : null, shown.inputs.map(input)) : null,
      Object.assign(card("Record", pairs(shown.facts), table(shown.record.columns, shown.record.rows),
        shown.outputs ? null : source), { className: "sl-card sl-record" })));
    return drawn;
  }
  return { element, draw };
}

// ---- running a case anew ----

function runner(model) {
  const id = `sl-${(instances += 1)}`;
  const { platforms, samplers } = model.get("_choices");
  const field = (key, name, input) => html("label", {}, name, Object.assign(input, { name: key }));
  const text = () => html("input", { list: `${id}-platforms`, spellcheck: "false", class: "sl-platform" });
  const seed = html("input", { type: "number", min: "0", step: "1", class: "sl-number" });
  const threshold = html("input", { type: "text", inputmode: "decimal", class: "sl-number", on: { keydown: (event) => {
    if (event.key !== "Enter") return; // needs no run
    event.preventDefault();
    commit();
  } } });
  const sampler = html("select", {},
    Object.entries(samplers).map(([name, what]) => html("option", { value: name, title: what }, name)));
  const start = html("button", { type: "submit", class: "sl-action" }, "Run again");
  const bar = html("progress", { max: "1", value: "0", "aria-label": "Progress of the run" });
  const said = html("span", { class: "sl-said", role: "status" });
  const code = html("code");
  const copy = html("button", { type: "button", on: { click: copied } }, "Copy reproducer");
  const fields = { reference: text(), candidate: text(), sampler, seed, threshold };
  const form = html("form", {
    class: "sl-run", "aria-label": "Run the case again",
    on: {
      change: commit,
      submit: (event) => {
        event.preventDefault();
        commit();
        // With its settings, since a message may overtake changes of the state.
        const keys = ["reference", "candidate", "sampler", "seed"];
        model.send({ action: "rerun", settings: Object.fromEntries(keys.map((key) => [key, model.get(key)])) });
      },
    },
  },
  html("datalist", { id: `${id}-platforms` }, platforms.map((name) => html("option", { value: name }))),
  field("reference", "Reference", fields.reference), field("candidate", "Candidate", fields.candidate),
  field("sampler", "Sampler", sampler), field("seed", "Seed", seed), field("threshold", "Threshold", threshold),
  start, html("div", { class: "sl-progress" }, bar, said, copy));
  const lines = html("details", { class: "sl-code" }, html("summary", {}, "Reproducer"),
    html("pre", { tabindex: "0" }, code));
  let timer = null;

  // All fields at once, since one may still hold the cursor; what is no valid number goes back to what it was.
  function commit() {
    for (const [key, input] of Object.entries(fields)) {
      const written = input.value.trim(), value = Number(written);
      if (key !== "seed" && key !== "threshold") model.set(key, written);
      else if (written !== "" && Number.isFinite(value) && (key === "seed" ? value >= 0 : value > 0)) {
        model.set(key, key === "seed" ? Math.round(value) : value);
      } else input.value = String(model.get(key));
    }
    model.save_changes();
  }

  async function copied() {
    const snippet = model.get("_view").snippet;
    try {
      await navigator.clipboard.writeText(snippet);
    } catch {
      const area = html("textarea", { class: "sl-hidden" });
      area.value = snippet;
      form.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      copy.focus();
    }
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy reproducer"; }, 1500);
  }

  function draw() {
    for (const [key, input] of Object.entries(fields)) {
      const value = String(model.get(key));
      if (input !== document.activeElement) input.value = value;
    }
    code.textContent = model.get("_view").snippet;
    start.textContent = model.get("_view").case ? "Run again" : "Run";
    copy.disabled = lines.hidden = !model.get("_view").snippet;
  }

  function progress() {
    const now = model.get("_progress"), running = now.state === "running";
    clearInterval(timer);
    form.dataset.state = now.state;
    start.disabled = running;
    bar.max = now.steps;
    bar.value = now.step + (running ? 0.5 : 0);
    bar.hidden = !running;
    const began = performance.now();
    const say = () => {
      const seconds = Math.round((performance.now() - began) / 1000);
      said.textContent = running && seconds ? `${now.text} (${seconds} s)` : now.text;
    };
    say();
    if (running) timer = setInterval(say, 1000);
  }
  return { element: html("div", { class: "sl-again" }, form, lines), draw, progress, stop: () => clearInterval(timer) };
}

// ---- the whole ----

function caseBar(model, put) {
  const title = html("h3", {}), about = html("p", { class: "sl-faint" }), verdict = html("span", { class: "sl-verdict" });
  const select = html("select", {
    "aria-label": "Case", class: "sl-cases", on: { change: (event) => put("case", event.target.value) },
  });
  const step = (by) => {
    const keys = model.get("_view").cases.map((item) => item.key), now = keys.indexOf(model.get("case"));
    if (keys.length) put("case", keys[(now + by + keys.length) % keys.length]);
  };
  const before = html("button", { type: "button", "aria-label": "Previous case", on: { click: () => step(-1) } }, "\u25c0");
  const after = html("button", { type: "button", "aria-label": "Next case", on: { click: () => step(1) } }, "\u25b6");
  const place = html("span", { class: "sl-place" });
  const choice = (key, name, values) => html("label", {}, name,
    html("select", { name: key, on: { change: (event) => put(key, event.target.value) } },
      values.map((value) => html("option", { value }, value))));
  const looks = html("div", { class: "sl-looks" },
    choice("side", "Difference", ["propagated", "local"]), choice("scale", "Colours", ["paper", "log"]));

  function draw() {
    const view = model.get("_view");
    title.textContent = `Pattern ${view.pattern}`;
    about.replaceChildren(`${view.about}; ${view.pair}${view.drawn ? `; ${view.drawn}` : ""}`,
      view.verdict ? "; most serious verdict: " : "", verdict);
    verdict.textContent = verdict.dataset.verdict = view.verdict;
    select.replaceChildren(...view.cases.map((item) => html("option", { value: item.key }, item.label)));
    if (!view.cases.length) select.append(html("option", { value: "" }, "no case was run"));
    select.value = view.case;
    const now = view.cases.findIndex((item) => item.key === view.case);
    place.textContent = view.cases.length ? `${now + 1} of ${view.cases.length}` : "";
    select.disabled = !view.cases.length;
    before.disabled = after.disabled = view.cases.length < 2;
    for (const one of looks.querySelectorAll("select")) {
      one.value = model.get(one.name);
      one.disabled = !view.cases.length;
    }
  }
  const element = html("header", { class: "sl-bar" }, title, about,
    html("div", { class: "sl-tools" },
      html("div", { class: "sl-step" }, html("span", {}, "Case"), before, select, after, place), looks));
  return { element, draw };
}

function render({ model, el }) {
  const put = (key, value) => {
    model.set(key, value);
    model.save_changes();
  };
  const list = patternList(model, (pattern) => put("pattern", pattern));
  const bar = caseBar(model, put);
  const picture = graph(model, (node) => put("node", node));
  const again = runner(model);
  const call = detail(model);
  // JupyterLab takes single keys as commands unless told not to.
  const root = html("div", { class: "sl-explorer", "data-lm-suppress-shortcuts": "true" },
    html("div", { class: "sl-grid" }, list.element,
      html("section", { class: "sl-main", "aria-label": "The chosen case" }, bar.element, picture.element, again.element),
      call.element));

  function showCall() {
    picture.mark();
    const drawn = call.draw();
    if (drawn) root.dataset.shown = drawn;
  }

  const draws = {
    _view: () => {
      const view = model.get("_view");
      bar.draw();
      picture.draw();
      again.draw();
      [root.dataset.pattern, root.dataset.case] = [view.pattern, view.case];
    },
    _details: showCall, node: showCall,
    _shown: list.draw, sort: list.draw, filter: list.draw, pattern: list.draw, _progress: again.progress,
    reference: again.draw, candidate: again.draw, sampler: again.draw, seed: again.draw, threshold: again.draw,
    side: bar.draw, scale: bar.draw,
  };
  for (const [key, draw] of Object.entries(draws)) model.on(`change:${key}`, draw);
  el.append(root);
  for (const key of ["_shown", "_view", "_details", "_progress"]) draws[key]();
  // The list knows its height only once it is in the page.
  const resized = new ResizeObserver(list.draw);
  resized.observe(list.element);
  return () => {
    for (const [key, draw] of Object.entries(draws)) model.off(`change:${key}`, draw);
    resized.disconnect();
    again.stop();
  };
}

export default { render };
