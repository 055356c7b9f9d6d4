// Draws the scenes that the kernel sends, and tells it what the reader selects. Text only ever becomes text nodes.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 62, RIGHT = 10, AXIS = 34, GAP = 10;
const STEP = 0.02;

function make(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.appendChild(node);
  return node;
}

function write(parent, text, attributes) {
  make("text", attributes, parent).textContent = text;
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

class Plot {
  constructor(model, el) {
    this.model = model;
    this.scene = null;
    this.chosen = -1;
    this.root = document.createElement("div");
    this.root.className = "infer-diag-plot";
    this.legend = document.createElement("div");
    this.legend.className = "infer-diag-legend";
    this.svg = make("svg", { tabindex: "0", role: "application", class: "infer-diag-svg" }, null);
    this.readout = document.createElement("div");
    this.readout.className = "infer-diag-readout";
    this.readout.setAttribute("aria-live", "polite");
    this.root.append(this.legend, this.svg, this.readout);
    el.appendChild(this.root);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
    this.onMessage = (content, buffers) => this.receive(content, buffers);
    model.on("msg:custom", this.onMessage);
    this.svg.addEventListener("pointerdown", (event) => this.down(event));
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerup", (event) => this.up(event));
    this.svg.addEventListener("pointercancel", () => { this.drag = null; });
    this.svg.addEventListener("pointerleave", () => this.say(""));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    model.send({ ask: "scene" });
  }

  stop() {
    this.observer.disconnect();
    this.model.off("msg:custom", this.onMessage);
  }

  receive(content, buffers) {
    if (content.scene !== undefined) {
      this.scene = content.scene;
      this.chosen = -1;
      this.cells = null;
      if (this.scene && this.scene.kind === "raster") {
        const view = buffers[0];
        this.cells = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
      }
    } else if (this.scene && content.marks) {
      Object.assign(this.scene, content.marks);
    }
    this.draw();
  }

  say(text) {
    this.readout.textContent = text || (this.scene ? this.scene.note || "" : "");
  }

  draw() {
    const scene = this.scene, width = Math.max(this.root.clientWidth, 240);
    this.svg.replaceChildren();
    this.legend.replaceChildren();
    if (!scene) return;
    this.width = width - LEFT - RIGHT;
    for (const [name, colour] of scene.legend || []) {
      const entry = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = colour;
      entry.append(swatch, name);
      this.legend.appendChild(entry);
    }
    this.svg.setAttribute("aria-label", scene.label || "");
    this.svg.setAttribute("width", width);
    if (scene.kind === "raster") this.drawRaster(scene);
    else this.drawPanels(scene);
    this.say("");
  }

  x(value) {
    const [low, high] = this.scene.x;
    return LEFT + (this.width * (value - low)) / (high - low || 1);
  }

  value(pixels) {
    const [low, high] = this.scene.x;
    return low + ((high - low) * clamp(pixels - LEFT, 0, this.width)) / this.width;
  }

  drawPanels(scene) {
    let top = 4;
    this.boxes = [];
    for (const panel of scene.panels) {
      this.drawPanel(panel, top);
      top += panel.height + GAP;
    }
    this.bottom = top - GAP;
    let free = -Infinity;
    for (const [value, text] of scene.xticks) {
      const at = this.x(value), half = text.length * 3.2;
      make("line", { x1: at, x2: at, y1: 4, y2: this.bottom, class: "infer-diag-grid" }, this.svg);
      if (at - half < free) continue;
      const anchor = at + half > LEFT + this.width + RIGHT ? "end" : "middle";
      write(this.svg, text, { x: at, y: this.bottom + 14, "text-anchor": anchor });
      free = at + half + 8;
    }
    if (scene.xlabel) write(this.svg, scene.xlabel, { x: LEFT, y: this.bottom + 28, class: "infer-diag-axis" });
    this.svg.setAttribute("height", this.bottom + AXIS);
    this.over = make("g", {}, this.svg);
    this.drawOver();
  }

  drawPanel(panel, top) {
    const [low, high] = panel.y, group = make("g", {}, this.svg);
    const y = (value) => top + panel.height - (panel.height * (value - low)) / (high - low || 1);
    make("rect", { x: LEFT, y: top, width: this.width, height: panel.height, class: "infer-diag-frame" }, group);
    for (const [value, text] of panel.yticks) {
      make("line", { x1: LEFT, x2: LEFT + this.width, y1: y(value), y2: y(value), class: "infer-diag-grid" }, group);
      write(group, text, { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" });
    }
    for (const mark of panel.marks) this.drawMark(mark, panel, top, y, group);
    if (panel.label) write(group, panel.label, { x: LEFT + 6, y: top + 13, class: "infer-diag-panel" });
  }

  drawMark(mark, panel, top, y, group) {
    if (mark.t === "line") {
      let path = "", pen = false;
      for (let i = 0; i < mark.x.length; i++) {
        if (mark.y[i] === null) { pen = false; continue; }
        path += `${pen ? "L" : "M"}${this.x(mark.x[i]).toFixed(1)} ${y(mark.y[i]).toFixed(1)}`;
        pen = true;
      }
      const dash = mark.d ? { "stroke-dasharray": mark.d } : {};
      make("path", { d: path, fill: "none", stroke: mark.c, "stroke-width": 1.6, ...dash }, group);
      if (mark.x.length === 1 && mark.y[0] !== null) {
        make("circle", { cx: this.x(mark.x[0]), cy: y(mark.y[0]), r: 2.5, fill: mark.c }, group);
      }
    } else if (mark.t === "dots") {
      for (let i = 0; i < mark.x.length; i++) {
        make("circle", { cx: this.x(mark.x[i]), cy: y(mark.y[i]), r: 3.5, fill: mark.c }, group);
      }
    } else if (mark.t === "bars") {
      for (let i = 0; i < mark.y.length; i++) {
        const from = this.x(mark.x0[i]), height = y(0) - y(mark.y[i]);
        const width = Math.max(this.x(mark.x1[i]) - from - 0.5, 0.5);
        make("rect", { x: from, y: y(mark.y[i]), width, height: Math.max(height, 0), fill: mark.c }, group);
      }
    } else if (mark.t === "boxes") {
      this.drawBoxes(mark, panel, top, group);
    }
  }

  drawBoxes(mark, panel, top, group) {
    const rows = panel.rows, tall = panel.height / rows;
    for (let i = 0; i < mark.x0.length; i++) {
      const from = this.x(mark.x0[i]), width = Math.max(this.x(mark.x1[i]) - from, 1.5);
      const box = { x: from, y: top + mark.row[i] * tall + 2, width, height: tall - 4 };
      make("rect", { ...box, rx: 2, fill: mark.c[i], class: "infer-diag-box" }, group);
      const fits = Math.floor((width - 8) / 6.4), text = mark.text[i];
      if (fits >= Math.min(text.length, 8)) {
        const shown = text.length <= fits ? text : `${text.slice(0, fits - 1)}…`;
        write(group, shown, { x: from + 4, y: box.y + box.height / 2 + 4, style: `fill: ${mark.ink[i]}`, class: "infer-diag-on" });
      }
      else if (mark.row[i] > 0) {
        // A row that one box has to itself has room beside it.
        const after = from + width + text.length * 6.4 < LEFT + this.width;
        const place = after ? { x: from + width + 4, "text-anchor": "start" } : { x: from - 4, "text-anchor": "end" };
        write(group, text, { ...place, y: box.y + box.height / 2 + 4, class: "infer-diag-on" });
      }
      this.boxes.push({ ...box, id: mark.id[i], text: mark.hover[i] });
    }
  }

  drawOver() {
    if (!this.over) return;
    this.over.replaceChildren();
    const scene = this.scene, tall = this.bottom - 4;
    if (scene.brush) {
      const end = LEFT + this.width, [from, to] = scene.brush.map((value) => clamp(this.x(value), LEFT, end));
      const width = Math.max(to - from, 1);
      make("rect", { x: from, y: 4, width, height: tall, class: "infer-diag-brush" }, this.over);
    }
    if (scene.cursor !== null && scene.cursor !== undefined) {
      const at = this.x(scene.cursor);
      make("line", { x1: at, x2: at, y1: 4, y2: this.bottom, class: "infer-diag-cursor" }, this.over);
    }
    const box = this.boxes && this.boxes[this.chosen];
    if (box) {
      const { x, y, width, height } = box;
      make("rect", { x, y, width, height, class: "infer-diag-chosen" }, this.over);
    }
  }

  drawRaster(scene) {
    const canvas = document.createElement("canvas");
    canvas.width = scene.cols;
    canvas.height = scene.rows;
    const context = canvas.getContext("2d"), image = context.createImageData(scene.cols, scene.rows);
    for (let i = 0; i < this.cells.length; i++) image.data.set(scene.palette[this.cells[i]], i * 4);
    context.putImageData(image, 0, 0);
    this.cell = [this.width / scene.cols, scene.height / scene.rows];
    make("image", {
      href: canvas.toDataURL(), x: LEFT, y: 4, width: this.width, height: scene.height, preserveAspectRatio: "none",
      style: "image-rendering: pixelated",
    }, this.svg);
    make("rect", { x: LEFT, y: 4, width: this.width, height: scene.height, class: "infer-diag-frame" }, this.svg);
    for (const [row, text] of scene.yticks) {
      write(this.svg, text, { x: LEFT - 6, y: 4 + row * this.cell[1] + 9, "text-anchor": "end" });
    }
    this.svg.setAttribute("height", scene.height + 10);
    this.over = make("g", {}, this.svg);
    this.drawCell();
  }

  drawCell() {
    if (!this.over || !this.scene || this.scene.kind !== "raster") return;
    this.over.replaceChildren();
    const from = this.drag ? Math.min(this.drag.cell, this.chosen) : this.chosen;
    const to = this.drag ? Math.max(this.drag.cell, this.chosen) : this.chosen;
    if (from < 0) return;
    const cols = this.scene.cols;
    for (let row = Math.floor(from / cols); row <= Math.floor(to / cols); row++) {
      const first = Math.max(from, row * cols), last = Math.min(to, row * cols + cols - 1);
      make("rect", {
        x: LEFT + (first % cols) * this.cell[0], y: 4 + row * this.cell[1],
        width: (last - first + 1) * this.cell[0], height: this.cell[1], class: "infer-diag-chosen",
      }, this.over);
    }
  }

  at(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  cellAt([x, y]) {
    const { cols, rows } = this.scene;
    const column = clamp(Math.floor((x - LEFT) / this.cell[0]), 0, cols - 1);
    return clamp(Math.floor((y - 4) / this.cell[1]), 0, rows - 1) * cols + column;
  }

  down(event) {
    if (!this.scene || event.button !== 0) return;
    const at = this.at(event);
    if (this.scene.kind === "raster") {
      this.chosen = this.cellAt(at);
      this.drag = { cell: this.chosen };
      this.drawCell();
    } else {
      this.drag = { x: at[0] };
    }
    this.svg.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (!this.scene) return;
    const at = this.at(event);
    if (this.scene.kind === "raster") {
      if (this.drag) {
        this.chosen = this.cellAt(at);
        this.drawCell();
      }
      return;
    }
    if (this.drag && this.scene.brushable && Math.abs(at[0] - this.drag.x) > 3) {
      this.scene.brush = [this.value(this.drag.x), this.value(at[0])].sort((a, b) => a - b);
      this.drawOver();
    }
    this.say(this.told(at));
  }

  up(event) {
    if (!this.drag) return;
    const at = this.at(event), drag = this.drag;
    this.drag = null;
    if (this.scene.kind === "raster") {
      const cell = this.cellAt(at);
      if (cell === drag.cell) this.model.send({ cell });
      else this.model.send({ zoom: [Math.min(cell, drag.cell), Math.max(cell, drag.cell)] });
      return;
    }
    if (this.scene.brushable && Math.abs(at[0] - drag.x) > 3) {
      this.model.send({ brush: this.scene.brush });
      return;
    }
    const index = this.boxAt(at);
    if (index >= 0) this.pick(index);
    else if (this.scene.brushable && this.scene.brush) this.select(null);
    else this.model.send({ at: this.value(at[0]) });
  }

  boxAt([x, y]) {
    return (this.boxes || []).findIndex((b) => x >= b.x && x <= b.x + b.width && y >= b.y && y <= b.y + b.height);
  }

  told(at) {
    const index = this.boxAt(at);
    if (index >= 0) return this.boxes[index].text;
    const value = this.value(at[0]), words = [];
    for (const panel of this.scene.panels) {
      for (const mark of panel.marks) {
        if (mark.t !== "line" || !mark.x.length) continue;
        let low = 0, high = mark.x.length - 1;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (mark.x[middle] < value) low = middle + 1; else high = middle;
        }
        if (low > 0 && value - mark.x[low - 1] < mark.x[low] - value) low -= 1;
        if (mark.y[low] === null) continue;
        const scaled = mark.y[low] * (panel.scale || 1);
        words.push(`${mark.n} ${Number(scaled.toPrecision(3)).toLocaleString("en")}${panel.unit || ""}`);
      }
    }
    return words.join(" · ");
  }

  pick(index) {
    this.chosen = index;
    this.drawOver();
    this.say(this.boxes[index].text);
    this.model.send({ pick: this.boxes[index].id });
  }

  select(brush) {
    this.scene.brush = brush;
    this.drawOver();
    this.model.send({ brush });
  }

  key(event) {
    const handled = this.scene && (this.scene.kind === "raster" ? this.rasterKey(event) : this.panelKey(event));
    if (handled) {
      event.preventDefault();
      event.stopPropagation();
    }
  }

  panelKey({ key, shiftKey }) {
    const scene = this.scene, [low, high] = scene.x, way = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (this.boxes.length && (way || key === "Enter")) {
      this.pick(clamp(this.chosen + (way || 0), 0, this.boxes.length - 1));
      return true;
    }
    if (scene.brushable && way) {
      const step = (high - low) * STEP * way, [from, to] = scene.brush || [low, low + (high - low) / 4];
      const moved = shiftKey ? [from, Math.max(to + step, from)] : [from + step, to + step];
      this.select(moved.map((value) => clamp(value, low, high)));
      return true;
    }
    if (scene.brushable && key === "Escape" && scene.brush) {
      this.select(null);
      return true;
    }
    if (way && scene.cursor !== null && scene.cursor !== undefined) {
      this.model.send({ at: clamp(scene.cursor + (high - low) * STEP * way, low, high) });
      return true;
    }
    return false;
  }

  rasterKey({ key }) {
    const { cols, rows } = this.scene;
    const way = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: cols, ArrowUp: -cols }[key];
    if (way) {
      this.chosen = clamp(Math.max(this.chosen, 0) + way, 0, cols * rows - 1);
      this.drawCell();
      return true;
    }
    if (key === "Enter" && this.chosen >= 0) {
      this.model.send({ cell: this.chosen });
      return true;
    }
    return false;
  }
}

export default {
  render({ model, el }) {
    const plot = new Plot(model, el);
    return () => plot.stop();
  },
};
