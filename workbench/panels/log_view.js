// A list of log lines in a notebook. Loaded as it stands by anywidget: no bundler, no CDN.
//
// A line is {k: key, n: time to sort by, t: time, l: level, s: source, m: model, q: request, r: response time, w: where,
// x: text, b: traceback, f: whether its request failed}; everything in it is text, never HTML.
// Messages from Python: rows {view, reset, rows, keep}; "" is every view. A line whose key is there takes its place.
// Messages to Python: ready {view} · bye {view} · select {key}

const newId = () => Math.random().toString(36).slice(2);
const NEAR_THE_END_PX = 24;

class LogView {
  constructor(model, el) {
    this.model = model;
    this.id = newId();
    this.rows = new Map();
    this.selected = null;
    this.follows = true;
    this.list = document.createElement("div");
    this.list.className = "wb-log-list";
    this.list.setAttribute("role", "log");
    this.list.tabIndex = 0;
    this.empty = document.createElement("div");
    this.empty.className = "wb-log-empty";
    this.list.appendChild(this.empty);
    el.classList.add("wb-log");
    el.appendChild(this.list);
    this.onMessage = (message) => this.receive(message);
    this.onEmpty = () => this.showEmpty();
    this.onScroll = () => {
      const left = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight;
      this.follows = left < NEAR_THE_END_PX;
    };
    this.onClick = (event) => this.click(event);
    this.list.addEventListener("scroll", this.onScroll, { passive: true });
    this.list.addEventListener("click", this.onClick);
    model.on("msg:custom", this.onMessage);
    model.on("change:_empty", this.onEmpty);
    this.showEmpty();
    model.send({ type: "ready", view: this.id });
  }

  receive(message) {
    if (message?.type !== "rows" || (message.view && message.view !== this.id)) return;
    if (message.reset) {
      for (const { node } of this.rows.values()) node.remove();
      this.rows.clear();
      this.follows = true;
    }
    for (const row of message.rows) this.put(row);
    while (this.rows.size > message.keep) {
      const oldest = this.list.querySelector(".wb-log-row");
      this.rows.delete(oldest.dataset.key);
      oldest.remove();
    }
    this.showEmpty();
    if (this.follows) this.list.scrollTop = this.list.scrollHeight;
    this.list.dataset.rows = String(this.rows.size);
  }

  put(row) {
    const known = this.rows.get(row.k);
    const node = known?.node ?? this.make(row);
    if (!known) this.insert(node, row.n);
    this.rows.set(row.k, { node, n: row.n });
    node.className = `wb-log-row wb-log-${row.l} wb-log-from-${row.s}`;
    node.classList.toggle("wb-log-failed", row.f);
    node.classList.toggle("wb-log-chosen", row.k === this.selected);
    for (const [name, text] of [["t", row.t], ["l", row.l], ["m", row.m], ["q", row.q], ["r", row.r], ["w", row.w]]) {
      node.querySelector(`.wb-log-${name}`).textContent = text;
    }
    // Triton's text of an error ends with the calls; the traceback says the same and more.
    node.querySelector(".wb-log-text").textContent = row.b ? row.x.split("\n\nAt:\n")[0] : row.x;
    node.querySelector(".wb-log-fold").hidden = !row.b;
    node.querySelector(".wb-log-b").textContent = row.b;
  }

  make(row) {
    const node = document.createElement("div");
    node.dataset.key = row.k;
    for (const name of ["t", "l", "m", "q", "r", "w", "x"]) {
      node.appendChild(document.createElement("span")).className = `wb-log-${name}`;
    }
    const place = node.lastElementChild;
    const fold = place.appendChild(document.createElement("button"));
    fold.className = "wb-log-fold";
    fold.textContent = "▸ traceback";
    fold.setAttribute("aria-expanded", "false");
    place.appendChild(document.createElement("span")).className = "wb-log-text";
    const trace = node.appendChild(document.createElement("pre"));
    trace.className = "wb-log-b";
    trace.hidden = true;
    return node;
  }

  // Lines come nearly in order: the place is looked for from the end.
  insert(node, n) {
    node.dataset.n = String(n);
    let before = this.list.lastElementChild;
    while (before !== this.empty && Number(before.dataset.n) > n) before = before.previousElementSibling;
    before.after(node);
  }

  showEmpty() {
    this.empty.textContent = this.rows.size ? "" : this.model.get("_empty");
  }

  click(event) {
    const node = event.target.closest(".wb-log-row");
    const fold = event.target.closest(".wb-log-fold");
    if (fold !== null) {
      const trace = node.querySelector(".wb-log-b");
      trace.hidden = !trace.hidden;
      fold.textContent = trace.hidden ? "▸ traceback" : "▾ traceback";
      fold.setAttribute("aria-expanded", String(!trace.hidden));
      this.follows = false; // somebody reads
    }
    if (node === null || String(document.getSelection()).length > 0) return;
    this.list.querySelector(".wb-log-chosen")?.classList.remove("wb-log-chosen");
    node.classList.add("wb-log-chosen");
    this.selected = node.dataset.key;
    this.follows = false;
    this.model.send({ type: "select", key: this.selected });
  }

  stop() {
    this.model.off("msg:custom", this.onMessage);
    this.model.off("change:_empty", this.onEmpty);
    this.list.removeEventListener("scroll", this.onScroll);
    this.list.removeEventListener("click", this.onClick);
    try {
      this.model.send({ type: "bye", view: this.id });
    } catch {
      // The kernel is gone: nobody is left to be told.
    }
  }
}

export default () => ({
  render({ model, el }) {
    const view = new LogView(model, el);
    return () => view.stop();
  },
});
