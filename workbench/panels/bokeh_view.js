// Draws one Bokeh document in a notebook. Loaded as it stands by anywidget: no bundler, no CDN.
//
// Messages from Python (every one after the snapshot carries a growing `seq`):
//   lib   {}                  + [gzip of bokeh.min.js]        the library, asked for once a page
//   snap  {view, seq, item}                                   the whole document, for one view
//   s     {seq, parts: [{id, cols, n, roll}]} + [float64s]    new rows of numeric columns
//   p     {seq, patch, ids}   + buffers                       any other change, as Bokeh encodes it
// Messages to Python: lib? {} · ready {view} · bye {view} · range {id, start, end} · select {id, key}

const ASK_AGAIN_MS = 4000;
const ASK_AT_MOST_MS = 60000;
const PATIENCE_MS = 1500; // after this a chart that waits says what for
const QUEUE_LIMIT = 120; // messages kept for a chart that is off screen, before a fresh snapshot is cheaper
const RANGE_EVERY_MS = 60;
const GESTURE_MS = 700;
const GESTURES = ["pointerdown", "pointermove", "pointerup", "wheel", "keydown"];
const LIBRARIES = (globalThis.__serving_workbench_bokeh__ ??= new Map());

const newId = () => Math.random().toString(36).slice(2);

async function importLibrary(bytes) {
  const unzipped = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const source = await new Response(unzipped).text();
  // bokeh.min.js is a script that puts `Bokeh` on its `this`: give it an object of its own, so the page keeps its globals.
  const parts = ["const root={};(function(){", source, "\n}).call(root);export default root.Bokeh;"];
  const url = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
  try {
    return (await import(/* webpackIgnore: true */ url)).default;
  } finally {
    URL.revokeObjectURL(url);
  }
}

// One copy a page and version, asked for through whichever model is there. If the one that asked goes away before the
// answer, the next one asks again; a kernel that is busy with a cell is waited for, and asked ever less often.
function sharedLibrary(version) {
  let entry = LIBRARIES.get(version);
  if (entry === undefined) {
    entry = { asks: 0, nextAsk: 0, done: false };
    entry.promise = new Promise((resolve, reject) => Object.assign(entry, { resolve, reject }));
    LIBRARIES.set(version, entry);
  }
  return entry;
}

function followLibrary(model) {
  const entry = sharedLibrary(model.get("_bokeh_version"));
  let timer = 0;
  const stop = () => {
    clearTimeout(timer);
    model.off("msg:custom", onMessage);
  };
  function onMessage(msg, buffers) {
    if (msg?.type !== "lib" || entry.done) return;
    entry.done = true;
    importLibrary(buffers[0]).then(entry.resolve, entry.reject);
    stop();
  }
  const ask = () => {
    if (entry.done) return stop();
    if (Date.now() >= entry.nextAsk) {
      entry.nextAsk = Date.now() + Math.min(ASK_AGAIN_MS * 2 ** entry.asks, ASK_AT_MOST_MS);
      entry.asks += 1;
      model.send({ type: "lib?" });
    }
    timer = setTimeout(ask, 500);
  };
  model.on("msg:custom", onMessage);
  ask();
  return { promise: entry.promise, stop };
}

// ---------------------------------------------------------------- theme

function pageIsDark() {
  const light = document.body.dataset.jpThemeLight;
  if (light !== undefined) return light === "false";
  return document.body.classList.contains("vscode-dark") || document.body.dataset.vscodeThemeKind === "vscode-dark";
}

const THEMES = {
  light: { text: "#1f2933", muted: "#52606d", line: "#9aa5b1", grid: "#e4e7eb" },
  dark: { text: "#e4e7eb", muted: "#b8c2cc", line: "#7b8794", grid: "#3a424c" },
};

function themeOf(type, colours) {
  if (/Axis$/.test(type)) {
    return {
      axis_line_color: colours.line,
      major_tick_line_color: colours.line,
      minor_tick_line_color: null,
      axis_label_text_color: colours.muted,
      major_label_text_color: colours.muted,
      group_text_color: colours.text,
      subgroup_text_color: colours.muted,
    };
  }
  switch (type) {
    case "Grid":
      return { grid_line_color: colours.grid };
    case "Title":
      return { text_color: colours.text };
    case "Legend":
      return { label_text_color: colours.text };
    case "Label":
      return { text_color: colours.muted };
    case "LabelSet":
      return { text_color: colours.text };
    default:
      return null;
  }
}

function applyTheme(doc, el) {
  const dark = pageIsDark();
  const colours = dark ? THEMES.dark : THEMES.light;
  const models = doc.all_models ?? doc._all_models.values();
  for (const m of models) {
    const settings = themeOf(m.type, colours);
    if (settings === null) continue;
    const known = Object.fromEntries(Object.entries(settings).filter(([name]) => name in m.properties));
    const keepsLine = m.type === "Grid" && m.grid_line_color == null;
    if (!keepsLine) m.setv(known, { sync: false });
  }
  el.dataset.theme = dark ? "dark" : "light";
}

// ---------------------------------------------------------------- header

// Title, note and legend as text: they wrap with the page and never cover the data.
function renderHeader(header, place) {
  place.replaceChildren();
  const add = (parent, tag, className, text) => {
    const node = document.createElement(tag);
    node.className = className;
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  if (header?.title) {
    const line = add(place, "div", "wb-chart-title");
    add(line, "b", "", header.title);
    if (header.note) add(line, "span", "wb-chart-note", header.note);
  }
  if (!header?.legend?.length) return;
  const list = add(place, "div", "wb-chart-legend");
  for (const entry of header.legend) {
    const item = add(list, "span", "wb-chart-entry");
    const drawn = ["line", "dotted", "dashed", "box"].includes(entry.mark);
    const mark = add(item, "i", `wb-mark wb-mark-${drawn ? entry.mark : "sign"}`, drawn ? undefined : entry.mark);
    mark.style.color = entry.colour;
    add(item, "span", "", entry.label);
  }
}

// ---------------------------------------------------------------- data

// Slices, because a buffer's offset is not aligned to 8 bytes.
const toArrayBuffer = (view) => view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);

function unpackStream(msg, buffer) {
  const numbers = new Float64Array(toArrayBuffer(buffer));
  let at = 0;
  return msg.parts.map((part) => {
    const data = {};
    for (const name of part.cols) {
      data[name] = Array.from(numbers.subarray(at, at + part.n));
      at += part.n;
    }
    return { id: part.id, data, roll: part.roll };
  });
}

function mergeStreams(streams) {
  const merged = new Map();
  for (const part of streams) {
    const known = merged.get(part.id);
    if (known === undefined) {
      merged.set(part.id, part);
      continue;
    }
    for (const [name, values] of Object.entries(part.data)) known.data[name] = known.data[name].concat(values);
    known.roll = part.roll;
  }
  return merged.values();
}

// ---------------------------------------------------------------- one view

class ChartView {
  constructor(model, el) {
    this.model = model;
    this.el = el;
    this.id = newId();
    this.queue = [];
    this.seq = -1;
    this.doc = null;
    this.manager = null;
    this.frame = 0;
    this.frames = 0;
    this.visible = true;
    this.closed = false;
    this.remote = false; // true while a change from Python is being applied: it must not be sent back
    this.asked = false;
    this.gesture = 0;
    this.onGesture = (event) => {
      if (event.type !== "pointermove" || event.buttons !== 0) this.gesture = Date.now();
    };
    this.onMessage = (msg, buffers) => this.receive(msg, buffers);
  }

  start() {
    this.el.classList.add("wb-chart");
    this.el.dataset.state = "loading";
    this.el.setAttribute("role", "img");
    this.el.setAttribute("aria-label", this.model.get("_label"));
    this.header = document.createElement("div");
    this.header.className = "wb-chart-header";
    this.el.appendChild(this.header);
    this.onHeader = () => renderHeader(this.model.get("_header"), this.header);
    this.onHeader();
    this.model.on("change:_header", this.onHeader);
    this.target = document.createElement("div");
    this.target.style.width = "100%";
    this.target.style.minHeight = `${this.model.get("_height")}px`; // so the page does not jump when the chart arrives
    this.el.appendChild(this.target);
    for (const type of GESTURES) this.el.addEventListener(type, this.onGesture, { capture: true, passive: true });
    this.model.on("msg:custom", this.onMessage);
    this.theme = new MutationObserver(() => this.doc && this.quietly(() => applyTheme(this.doc, this.el)));
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
    this.gate = new IntersectionObserver((entries) => this.seen(entries[entries.length - 1].isIntersecting), {
      rootMargin: "100px",
    });
    this.gate.observe(this.el);
    this.patience = setTimeout(() => {
      if (this.doc === null && !this.closed) this.target.textContent = "Waiting for the kernel …";
    }, PATIENCE_MS);
    this.library = followLibrary(this.model);
    this.library.promise.then(
      (bokeh) => {
        this.bokeh = bokeh;
        this.ask();
      },
      (error) => this.fail(error),
    );
  }

  ask() {
    if (this.closed || this.asked) return;
    this.asked = true;
    this.model.send({ type: "ready", view: this.id });
  }

  fail(error) {
    if (this.closed) return;
    this.el.dataset.state = "failed";
    this.target.textContent = `This chart cannot be drawn: ${error.message}. Is the kernel running? Run the cell again.`;
  }

  receive(msg, buffers) {
    if (msg?.type === "snap") {
      if (msg.view === this.id) this.embed(msg).catch((error) => this.fail(error));
    } else if (msg?.type === "s" || msg?.type === "p") {
      if (!this.visible && this.queue.length >= QUEUE_LIMIT) {
        this.queue = [];
        this.stale = true;
      }
      if (!this.stale) this.queue.push([msg, buffers]);
      this.schedule();
    }
  }

  async embed(msg) {
    this.seq = msg.seq;
    this.clear();
    const manager = await this.bokeh.embed.embed_item(msg.item, this.target);
    if (this.closed) return void manager.clear();
    this.manager = manager;
    this.doc = [...manager][0].model.document;
    this.asked = false;
    this.stale = false;
    this.quietly(() => applyTheme(this.doc, this.el));
    this.watchRanges();
    this.watchClicks();
    this.describe();
    this.el.dataset.state = "drawn";
    this.schedule();
  }

  // What the page really shows, for tests and for people who look at the DOM.
  describe() {
    const models = [...(this.doc.all_models ?? this.doc._all_models.values())];
    const axes = models.filter((m) => /Axis$/.test(m.type) && m.visible).map((m) => m.axis_label ?? "");
    this.el.dataset.axes = JSON.stringify(axes);
  }

  watchRanges() {
    for (const id of this.model.get("_watch")) {
      const range = this.doc.get_model_by_id(id);
      if (range === null) continue;
      let timer = 0;
      range.change.connect(() => {
        // A range that follows its data moves by itself when it is painted: only what a hand did is told.
        if (this.remote || timer !== 0 || Date.now() - this.gesture > GESTURE_MS) return;
        timer = setTimeout(() => {
          timer = 0;
          if (!this.closed) this.model.send({ type: "range", id, start: range.start, end: range.end });
        }, RANGE_EVERY_MS);
      });
    }
  }

  // The key of what was clicked is told, not its place: the rows may be others by the time Python hears of it.
  watchClicks() {
    for (const [id, column] of Object.entries(this.model.get("_select") ?? {})) {
      const source = this.doc.get_model_by_id(id);
      if (source === null) continue;
      source.selected.change.connect(() => {
        const index = source.selected.indices[0];
        if (this.remote || index === undefined) return;
        const key = source.data[column]?.[index];
        if (key !== undefined && !this.closed) this.model.send({ type: "select", id, key });
        setTimeout(() => this.doc && this.quietly(() => source.selected.setv({ indices: [] }, { sync: false })));
      });
    }
  }

  seen(visible) {
    this.visible = visible;
    if (!visible) return;
    if (this.stale) this.ask();
    else this.schedule();
  }

  schedule() {
    if (this.closed || this.doc === null || !this.visible || this.frame !== 0 || this.queue.length === 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.drain();
    });
  }

  drain() {
    const messages = this.queue.filter(([msg]) => msg.seq > this.seq);
    this.queue = [];
    let streams = [];
    const flush = () => {
      for (const part of mergeStreams(streams)) {
        this.doc.get_model_by_id(part.id)?.stream(part.data, part.roll ?? undefined, { sync: false });
      }
      streams = [];
    };
    this.quietly(() => {
      for (const [msg, buffers] of messages) {
        this.seq = msg.seq;
        if (msg.type === "s") {
          streams.push(...unpackStream(msg, buffers[0]));
        } else {
          flush(); // order matters between the two kinds
          const found = new Map(msg.ids.map((id, i) => [id, toArrayBuffer(buffers[i])]));
          this.doc.apply_json_patch(JSON.parse(msg.patch), found);
        }
      }
      flush();
    });
    this.frames += 1;
    this.el.dataset.frames = String(this.frames);
    this.el.dataset.seq = String(this.seq);
  }

  quietly(change) {
    this.remote = true;
    try {
      change();
    } finally {
      this.remote = false;
    }
  }

  clear() {
    const doc = this.doc;
    this.doc = null;
    this.manager?.clear();
    this.manager = null;
    doc?.clear({ sync: false });
    this.target.replaceChildren();
  }

  stop() {
    this.closed = true;
    clearTimeout(this.patience);
    this.library.stop();
    cancelAnimationFrame(this.frame);
    this.model.off("msg:custom", this.onMessage);
    this.model.off("change:_header", this.onHeader);
    for (const type of GESTURES) this.el.removeEventListener(type, this.onGesture, { capture: true });
    this.theme.disconnect();
    this.gate.disconnect();
    this.clear();
    try {
      this.model.send({ type: "bye", view: this.id });
    } catch {
      // The kernel is gone: nobody is left to be told.
    }
  }
}

export default () => ({
  initialize({ model }) {
    // The model starts the library before a view exists, so the two overlap.
    const library = followLibrary(model);
    library.promise.catch(() => undefined);
    return () => library.stop();
  },
  render({ model, el }) {
    const view = new ChartView(model, el);
    view.start();
    return () => view.stop();
  },
});
