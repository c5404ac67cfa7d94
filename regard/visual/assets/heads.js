// Every head of every layer. Needs no ids: it brings to life each root that is not alive yet,
// so any number of these pages may stand in one document, each with its own copy of this script.
(() => {
  "use strict";
  const KINDS = {
    encoder: "encoder self-attention", decoder: "decoder self-attention", cross: "cross-attention",
    query: "query stream",
  };

  const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  const element = (tag, parent, attributes = {}, text) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  const shape = (tag, parent, attributes, text) => {  // the namespace is asked of the stage itself
    const made = document.createElementNS(parent.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const unpack = (panel, labels) => {
    const bytes = Uint8Array.from(atob(panel.data), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const weights = new Float32Array(bytes.length / 2);
    for (let i = 0; i < weights.length; i++) weights[i] = view.getUint16(2 * i, true) * panel.scale / 65535;
    return { ...panel, weights, queries: labels[panel.queries], keys: labels[panel.keys] };
  };

  // Words instead of tokens: the mean over the tokens of a query, the sum over those of a key.
  const byWords = (panel, words) => {
    const sides = [[panel.queries, words[0]], [panel.keys, words[1]]];
    const [rows, columns] = sides.map(([tokens, found]) => found ?? tokens.map((token) => [token, 1]));
    const [row, column] = [rows, columns].map((found) => found.flatMap(([, size], i) => Array(size).fill(i)));
    const weights = new Float32Array(panel.heads * rows.length * columns.length);
    panel.weights.forEach((weight, i) => {
      const s = i % column.length, t = Math.floor(i / column.length) % row.length;
      const h = Math.floor(i / (row.length * column.length));
      weights[(h * rows.length + row[t]) * columns.length + column[s]] += weight / rows[row[t]][1];
    });
    const texts = [rows, columns].map((found) => found.map(([word]) => word));
    return { ...panel, weights, queries: texts[0], keys: texts[1], mean: undefined };
  };

  const mean = (panel) => {
    const size = panel.queries.length * panel.keys.length, total = new Float32Array(size);
    for (let i = 0; i < panel.weights.length; i++) total[i % size] += panel.weights[i] / panel.heads;
    return total;
  };

  const head = (panel, index) => {
    const size = panel.queries.length * panel.keys.length;
    if (index === "mean") return (panel.mean ??= mean(panel));
    return panel.weights.subarray(index * size, (index + 1) * size);
  };

  const largest = (weights) => weights.reduce((a, b) => Math.max(a, b), 0) || 1;
  const clip = (text) => ([...text].length > 16 ? [...text].slice(0, 15).join("") + "…" : text);
  const ink = (root) => {
    const probe = element("span", root, { style: "color:var(--rg-accent);display:none" });
    const found = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
    probe.remove();
    return found;
  };

  const paint = (canvas, weights, rows, columns, peak, colour) => {
    canvas.width = columns;
    canvas.height = rows;
    const image = new ImageData(columns, rows);
    for (let i = 0; i < weights.length; i++) {
      image.data.set([colour[0], colour[1], colour[2], Math.min(255, 255 * weights[i] / peak)], 4 * i);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  };

  class Heads {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.units = { tokens: data.panels.map((panel) => unpack(panel, data.labels)) };
      this.merges = data.words.some((words) => words);
      this.unit = this.merges ? data.unit : "tokens";
      this.example = 0;
      this.view = data.view;
      this.scale = "own";
      this.pinned = null;
      const first = this.panels.find((panel) => panel.kind === "cross") ?? this.panels[0];
      this.kind = first.kind;
      this.layer = first.layer;
      this.head = data.head;
      this.build();
      this.draw();
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
      let width = this.scroll.clientWidth;
      new ResizeObserver(() => {
        if (width !== this.scroll.clientWidth) { width = this.scroll.clientWidth; this.show(); }
      }).observe(this.scroll);
    }

    get panels() {
      if (this.unit === "words") {
        this.units.words ??= this.data.panels.map(({ queries, keys }, i) =>
          byWords(this.units.tokens[i], [this.data.words[queries], this.data.words[keys]]));
      }
      return this.units[this.unit];
    }

    build() {
      const bar = element("div", this.root, { class: "rg-bar" });
      if (this.data.examples.length > 1) {
        const pick = element("select", bar, { "aria-label": "sentence" });
        this.data.examples.forEach((text, i) => element("option", pick, { value: i }, text));
        pick.onchange = () => { this.example = +pick.value; this.pinned = null; this.draw(); };
      }
      const kinds = [...new Set(this.panels.map((panel) => panel.kind))];
      this.choices = [
        this.choice(bar, "attention", "kind", kinds.map((kind) => [kind, KINDS[kind] ?? kind])),
        this.choice(bar, "view", "view", [["matrix", "matrix"], ["arcs", "arcs"]]),
        this.choice(bar, "unit", "unit", this.merges ? [["words", "words"], ["tokens", "tokens"]] : []),
        this.choice(bar, "full colour", "scale", [["own", "largest weight of the head"], ["one", "1"]]),
      ];
      const body = element("div", this.root, { class: "rg-body" });
      this.overview = element("div", body, { class: "rg-overview" });
      this.overview.onkeydown = (event) => this.step(event);
      const main = element("div", body, { class: "rg-main" });
      this.where = element("p", main, { class: "rg-where" });
      this.said = element("p", main, { class: "rg-said", "aria-live": "polite" });
      this.scroll = element("div", main, { class: "rg-scroll" });
      this.scroll.append(this.root.querySelector("svg.rg-stage"));
      this.stage = this.scroll.firstChild;
      this.stage.removeAttribute("hidden");
      element("p", this.root, { class: "rg-note" }, this.data.note);
    }

    choice(bar, name, field, options) {
      const box = element("div", bar, { class: "rg-choice", role: "group", "aria-label": name });
      box.hidden = options.length < 2;
      if (field === "scale") element("span", box, {}, "full colour:");
      for (const [value, text] of options) {
        const button = element("button", box, { type: "button", "data-value": value }, text);
        button.onclick = () => { this[field] = value; this.pinned = null; this.draw(); };
      }
      return [box, field];
    }

    here() {
      return this.panels.filter((panel) => panel.kind === this.kind && panel.example === this.example);
    }

    panel() {
      const here = this.here();
      return here.find((panel) => panel.layer === this.layer) ?? here[0];
    }

    draw() {
      if (!this.panel()) this.kind = this.panels.find((panel) => panel.example === this.example).kind;
      const panel = this.panel();
      this.layer = panel.layer;
      if (this.head !== "mean" && this.head >= panel.heads) this.head = panel.heads - 1;
      for (const [box, field] of this.choices) {
        for (const button of box.querySelectorAll("button")) button.setAttribute("aria-pressed", button.dataset.value === this[field]);
      }
      this.colour = ink(this.root);
      this.thumbs();
      this.show();
    }

    thumbs() {
      const here = this.here(), numbers = [...new Set(here.flatMap((panel) => panel.numbers))].sort((a, b) => a - b);
      const most = numbers.length, columns = most > 1 ? most + 1 : 1, room = Math.min(330, this.root.clientWidth - 80);
      const side = Math.max(16, Math.min(44, Math.floor(room / columns)));
      this.overview.hidden = here.length * columns === 1;
      this.overview.style.gridTemplateColumns = `auto repeat(${columns}, ${side}px)`;
      this.overview.replaceChildren(element("span"));
      for (const number of numbers) element("span", this.overview, {}, number);
      if (most > 1) element("span", this.overview, {}, "mean");
      for (const panel of here) {
        element("span", this.overview, { class: "rg-layer" }, `layer ${panel.layer}`);
        for (const number of numbers) {  // a pruned head leaves its place empty
          if (panel.numbers.includes(number)) this.thumb(panel, panel.numbers.indexOf(number), side);
          else element("span", this.overview);
        }
        if (most > 1) this.thumb(panel, "mean", side);
      }
    }

    thumb(panel, index, side) {
      const name = index === "mean" ? "mean of the heads" : `head ${panel.numbers[index]}`;
      const button = element("button", this.overview, {
        type: "button", class: "rg-thumb", title: `layer ${panel.layer}, ${name}`,
        "aria-label": `layer ${panel.layer}, ${name}`, style: `width:${side}px;height:${side}px`,
        "aria-pressed": panel.layer === this.layer && index === this.head,
        "data-layer": panel.layer, "data-head": index,
      });
      const weights = head(panel, index), peak = this.scale === "own" ? largest(weights) : 1;
      paint(element("canvas", button), weights, panel.queries.length, panel.keys.length, peak, this.colour);
      button.onclick = () => this.pick(panel.layer, index);
    }

    pick(layer, index) {
      this.layer = layer;
      this.head = index;
      for (const button of this.overview.querySelectorAll("button")) {
        const on = button.dataset.layer === String(layer) && button.dataset.head === String(index);
        button.setAttribute("aria-pressed", on);
        if (on && this.overview.contains(document.activeElement)) button.focus();
      }
      this.show();
    }

    step(event) {
      const move = ARROWS[event.key];
      if (!move) return;
      event.preventDefault();
      const here = this.here(), panel = this.panel(), several = here.some((one) => one.heads > 1);
      const next = here[Math.max(0, Math.min(here.length - 1, here.indexOf(panel) + move[0]))];
      const last = several ? panel.heads : 0, now = this.head === "mean" ? panel.heads : this.head;
      const right = Math.max(0, Math.min(last, now + move[1]));
      const same = next.numbers.indexOf(panel.numbers[right]);  // in another layer it may be pruned
      this.pick(next.layer, right === panel.heads ? "mean" : same < 0 ? Math.min(right, next.heads - 1) : same);
    }

    show() {
      const panel = this.panel(), weights = head(panel, this.head);
      const name = panel.heads === 1 && panel.numbers[0] === 1 ? "" : this.head === "mean" ? " · mean of the heads" : ` · head ${panel.numbers[this.head]}`;
      this.where.textContent = `${KINDS[panel.kind] || panel.kind} · layer ${panel.layer}${name}`;
      this.now = {
        weights, queries: panel.queries, keys: panel.keys,
        peak: this.scale === "own" ? largest(weights) : 1,
        sums: panel.queries.map((_, t) => weights.subarray(t * panel.keys.length, (t + 1) * panel.keys.length)
          .reduce((a, b) => a + b, 0)),
      };
      this.stage.replaceChildren();
      this.stage.setAttribute("aria-label", `${this.where.textContent}; arrow keys read the weights`);
      this.stage.onpointermove = this.stage.onpointerleave = null;
      if (this.view === "matrix") this.matrix();
      else this.arcs();
      this.idle();
    }

    say(query, key) {
      const { weights, queries, keys, sums } = this.now;
      this.said.replaceChildren();
      element("b", this.said, {}, queries[query]);
      if (sums[query] === 0) this.said.append(" has nothing to attend to");
      else if (key === null) this.best(query);
      else {
        this.said.append(" → ");
        element("b", this.said, {}, keys[key]);
        this.said.append("  ");
        element("code", this.said, {}, weights[query * keys.length + key].toFixed(4));
      }
    }

    best(query) {
      const { weights, keys } = this.now, row = weights.subarray(query * keys.length, (query + 1) * keys.length);
      const order = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 4);
      this.said.append(" attends to ");
      order.forEach((key, i) => {
        if (i) this.said.append(", ");
        element("b", this.said, {}, keys[key]);
        this.said.append(" ");
        element("code", this.said, {}, row[key].toFixed(4));
      });
    }

    idle() {
      if (this.pinned !== null && this.pinned < this.now.queries.length) this.say(this.pinned, null);
      else this.said.textContent = this.view === "matrix"
        ? `Rows are query ${this.unit}, columns are key ${this.unit}. Point at a cell for its attention weight.`
        : `Query ${this.unit} are on the left, key ${this.unit} on the right. Point at one for its weights; a click keeps them.`;
    }

    sized(width, height) {
      this.stage.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.stage.setAttribute("width", width);
      this.stage.setAttribute("height", height);
    }

    measure(words, size) {
      const pen = (this.pen ??= document.createElement("canvas").getContext("2d"));
      pen.font = `${size}px ${getComputedStyle(this.root).fontFamily}`;
      return Math.max(10, ...words.map((word) => pen.measureText(clip(word)).width));
    }

    matrix() {
      const { weights, queries, keys, peak, sums } = this.now, most = Math.max(queries.length, keys.length);
      const room = this.scroll.clientWidth - this.measure(queries, 13) - this.measure(keys, 13) * 0.6 - 20;
      const cell = Math.max(9, Math.min(36, Math.floor(Math.min(760 / most, room / keys.length))));
      const size = Math.max(8, Math.min(13, cell * 0.85)), upright = cell < 16;
      const slope = this.measure(keys, size), left = this.measure(queries, size) + 12;
      const top = (upright ? 1 : 0.82) * slope + 14;
      this.sized(left + keys.length * cell + (upright ? 8 : 0.6 * slope + 8), top + queries.length * cell + 4);
      const canvas = paint(document.createElement("canvas"), weights, queries.length, keys.length, peak, this.colour);
      const box = { x: left, y: top, width: keys.length * cell, height: queries.length * cell };
      shape("image", this.stage, {
        ...box, href: canvas.toDataURL(), preserveAspectRatio: "none", style: "image-rendering:pixelated",
      });
      shape("rect", this.stage, { ...box, fill: "none", stroke: "var(--rg-faint)" });
      const rows = queries.map((word, t) => shape("text", this.stage, {
        x: left - 7, y: top + (t + 0.5) * cell, dy: ".35em", "text-anchor": "end", "font-size": size,
        class: sums[t] === 0 ? "rg-dim" : "",
      }, clip(word)));
      const columns = keys.map((word, s) => {
        const x = left + (s + 0.5) * cell, y = top - 7;
        const turn = `rotate(${upright ? -90 : -55} ${x} ${y})`;
        return shape("text", this.stage, { x, y, dy: ".35em", "font-size": size, transform: turn }, clip(word));
      });
      const mark = shape("rect", this.stage, {
        width: cell, height: cell, fill: "none", stroke: "var(--rg-ink)", "stroke-width": 1.5, visibility: "hidden",
      });
      this.follow({ left, top, cell, rows, columns, mark });
    }

    follow({ left, top, cell, rows, columns, mark }) {
      let last = [];
      const clear = () => {
        last.forEach((text) => text.classList.remove("rg-hit"));
        mark.setAttribute("visibility", "hidden");
        last = [];
      };
      const show = (t, s) => {
        clear();
        if (!rows[t] || s >= columns.length) return this.idle();
        last = s >= 0 ? [rows[t], columns[s]] : [rows[t]];
        last.forEach((text) => text.classList.add("rg-hit"));
        this.say(t, s >= 0 ? s : null);
        if (s < 0) return;
        mark.setAttribute("x", left + s * cell);
        mark.setAttribute("y", top + t * cell);
        mark.setAttribute("visibility", "visible");
      };
      this.stage.onpointermove = (event) => {
        const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.stage.getScreenCTM().inverse());
        show(Math.floor((point.y - top) / cell), Math.floor((point.x - left) / cell));
      };
      this.keys((t, s) => show(t, s));
      this.stage.onpointerleave = this.stage.onblur = () => { clear(); this.idle(); };
    }

    // The arrow keys move over the cells of the picture; `show` shows the cell (query, key).
    keys(show) {
      let t = 0, s = -1;
      this.stage.onkeydown = (event) => {
        const move = ARROWS[event.key], { queries, keys } = this.now;
        if (!move) return;
        event.preventDefault();
        t = Math.max(0, Math.min(queries.length - 1, t + (s < 0 ? 0 : move[0])));
        s = Math.max(0, Math.min(keys.length - 1, s + (s < 0 ? 1 : move[1])));
        show(t, s);
      };
    }

    arcs() {
      const { queries, keys } = this.now, most = Math.max(queries.length, keys.length);
      const high = most > 30 ? 17 : 24, size = most > 30 ? 12 : 14;
      const left = this.measure(queries, size) + 10, gap = 220, right = left + gap;
      this.sized(right + this.measure(keys, size) + 70, most * high + 8);
      const at = (index) => 4 + (index + 0.5) * high;
      const strokes = shape("g", this.stage, {}), words = shape("g", this.stage, {});
      const draw = (query, key) => this.strokes(strokes, left, right, at, high, query, key);
      const word = (text, index, x, side) => {
        const made = shape("text", words, {
          x, y: at(index), dy: ".35em", "font-size": size, class: "rg-pick",
          "text-anchor": side === "query" ? "end" : "start",
        }, clip(text));
        made.onpointerenter = () => {
          made.classList.add("rg-hit");
          side === "query" ? draw(index, null) : draw(null, index);
          if (side === "query") this.say(index, null); else this.asked(index);
        };
        made.onpointerleave = () => { made.classList.remove("rg-hit"); draw(this.pinned, null); this.idle(); };
        if (side === "query") made.onclick = () => { this.pinned = this.pinned === index ? null : index; draw(this.pinned, null); this.idle(); };
      };
      queries.forEach((text, t) => word(text, t, left - 6, "query"));
      keys.forEach((text, s) => word(text, s, right + 6, "key"));
      draw(this.pinned, null);
      this.keys((t) => { this.pinned = t; draw(t, null); this.idle(); });
      this.stage.onblur = null;
    }

    asked(key) {
      const { weights, queries, keys } = this.now;
      const column = queries.map((_, t) => weights[t * keys.length + key]);
      const order = [...column.keys()].sort((a, b) => column[b] - column[a]).slice(0, 4);
      this.said.replaceChildren();
      element("b", this.said, {}, keys[key]);
      this.said.append(" is attended to by ");
      order.forEach((query, i) => {
        if (i) this.said.append(", ");
        element("b", this.said, {}, queries[query]);
        this.said.append(" ");
        element("code", this.said, {}, column[query].toFixed(4));
      });
    }

    strokes(group, left, right, at, high, query, key) {
      const { weights, queries, keys, peak } = this.now;
      group.replaceChildren();
      const middle = (left + right) / 2, wide = this.measure(query !== null ? keys : queries, 14) + 12;
      for (let t = 0; t < queries.length; t++) {
        if (query !== null && t !== query) continue;
        for (let s = 0; s < keys.length; s++) {
          const weight = weights[t * keys.length + s];
          if ((key !== null && s !== key) || weight < 0.01 * peak) continue;
          const share = Math.min(1, weight / peak);
          shape("path", group, {
            d: `M${left},${at(t)} C${middle},${at(t)} ${middle},${at(s)} ${right},${at(s)}`, fill: "none",
            stroke: "var(--rg-accent)", "stroke-width": 0.6 + 3 * share, "stroke-opacity": share.toFixed(3),
          });
          const end = query !== null ? [right, at(s)] : key !== null ? [left - wide, at(t)] : null;
          if (end) shape("rect", group, {
            x: end[0], y: end[1] - high / 2 + 1, width: wide, height: high - 2, rx: 3,
            fill: "var(--rg-accent)", "fill-opacity": (0.45 * share).toFixed(3),
          });
        }
      }
    }
  }

  for (const root of document.querySelectorAll('[data-rg="heads-1"]:not([data-ready])')) {
    root.setAttribute("data-ready", "");
    root.querySelector(".rg-fallback")?.remove();
    const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
    root.regard = new Heads(root, data);
  }
})();
