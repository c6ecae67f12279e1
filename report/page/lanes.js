"use strict";
// Lanes draws a step's lanes over time, such as fetch, compute and drain: the predicted step above the measured one, on
// one scale. A lane that waits has a thin line in the color of the lane that it waits for. Below are the seconds of each lane
// as a table, which says the same without colors.
const lanes = (() => {
  const rowHeight = 22;
  const gap = 6;
  const head = 24;
  const foot = 22;
  const names = ["fetch", "compute", "drain", "update", "disk", "exchange", "send", "receive"];
  const colorIndex = (name) => (names.indexOf(name) >= 0 ? names.indexOf(name) : 7);
  const colorOf = (name) => plots.colorOf("c" + colorIndex(name));

  class Lanes {
    constructor() {
      this.range = null; // seconds that are shown; null: all
      this.canvas = dom.make("canvas", { tabindex: "0", role: "img", onkeydown: (e) => this.press(e), onpointermove: (e) => this.move(e), onpointerdown: (e) => this.hold(e), onpointerup: (e) => this.lift(e), ondblclick: () => this.zoom(null) });
      this.text = dom.make("p", { class: "note told", text: "Point at a bar to read it. Drag to zoom; 0 shows the whole step." });
      this.key = dom.make("ul", { class: "key" });
      this.table = dom.make("table", { class: "busy" });
      this.element = dom.make("div", {}, this.key, this.canvas, this.text, this.table);
      new ResizeObserver(() => this.draw()).observe(this.element);
    }

    set(predicted, measured) {
      this.parts = [["predicted", predicted], ["measured", measured]].filter(([, t]) => t?.lanes?.length);
      this.element.hidden = !this.parts.length;
      this.seconds = Math.max(...this.parts.map(([, t]) => t.seconds), 1e-9);
      this.lanes = [...new Set(this.parts.flatMap(([, t]) => t.lanes.map((l) => l.name)))];
      this.fillTable();
      this.draw();
    }

    // rows are all lanes from top to bottom with their places.
    rows() {
      let y = 0;
      const all = [];
      for (const [title, t] of this.parts) {
        y += head;
        for (const lane of t.lanes) {
          all.push({ title, t, lane, y });
          y += rowHeight + gap;
        }
      }
      this.height = y + foot;
      return all;
    }

    draw() {
      const width = this.element.clientWidth;
      if (!this.parts?.length || width < 50) {
        return;
      }
      const rows = this.rows();
      const unit = devicePixelRatio;
      const { canvas } = this;
      canvas.width = width * unit;
      canvas.height = this.height * unit;
      canvas.style.width = width + "px";
      canvas.style.height = this.height + "px";
      const ctx = canvas.getContext("2d");
      ctx.scale(unit, unit);
      ctx.font = "12px system-ui, sans-serif";
      ctx.textBaseline = "middle";
      this.left = 74;
      this.width = width - this.left - 8;
      const { from, to } = this.range ?? { from: 0, to: this.seconds };
      const place = (s) => this.left + ((s - from) / (to - from)) * this.width;
      let title = "";
      for (const row of rows) {
        if (row.title !== title) {
          title = row.title;
          ctx.fillStyle = plots.colorOf("text");
          ctx.textAlign = "left";
          ctx.fillText(`${title}: ${units.duration(row.t.seconds)} a step`, 0, row.y - head / 2);
        }
        ctx.fillStyle = plots.colorOf("muted");
        ctx.textAlign = "right";
        ctx.fillText(dom.clean(row.lane.name, 10), this.left - 8, row.y + rowHeight / 2);
        ctx.fillStyle = plots.colorOf("grid");
        ctx.fillRect(this.left, row.y, this.width, rowHeight);
        this.drawSpans(ctx, row, place, from, to);
      }
      this.drawScale(ctx, from, to, place);
      canvas.setAttribute("aria-label", "Lanes of a step over time. The table below has their busy and waiting seconds.");
    }

    // drawSpans fills what is busy. Spans that are narrower than a pixel are as faint as the part of it that they take.
    drawSpans(ctx, row, place, from, to) {
      ctx.save();
      ctx.beginPath();
      ctx.rect(this.left, row.y, this.width, rowHeight);
      ctx.clip();
      let end = 0; // of the span before
      for (const span of row.lane.spans ?? []) {
        const before = end;
        end = Math.max(end, span.to);
        if (span.to < from || before > to) {
          continue;
        }
        const x = place(span.from);
        if (span.waits_for && span.from > before) { // a thin line at the foot, until the span begins
          ctx.fillStyle = colorOf(span.waits_for);
          ctx.globalAlpha = 0.55;
          ctx.fillRect(place(before), row.y + rowHeight - 4, x - place(before), 4);
          ctx.globalAlpha = 1;
        }
        const w = Math.max(0.3, place(span.to) - x);
        ctx.fillStyle = colorOf(row.lane.name);
        ctx.fillRect(x, row.y, w > 3 ? w - 0.7 : w, rowHeight);
      }
      ctx.restore();
    }

    drawScale(ctx, from, to, place) {
      const about = (to - from) / Math.max(2, Math.floor(this.width / 110));
      const power = 10 ** Math.floor(Math.log10(about));
      const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= about);
      ctx.fillStyle = plots.colorOf("muted");
      ctx.textAlign = "center";
      for (let s = Math.ceil(from / step) * step; s <= to + step * 1e-6; s += step) {
        ctx.fillText(units.duration(Math.abs(s) < step * 1e-6 ? 0 : s), Math.min(this.left + this.width - 14, place(s)), this.height - foot / 2);
      }
    }

    secondsAt(e) {
      const { from, to } = this.range ?? { from: 0, to: this.seconds };
      const left = e.clientX - this.canvas.getBoundingClientRect().left;
      return Math.min(to, Math.max(from, from + ((left - this.left) / this.width) * (to - from)));
    }

    move(e) {
      const at = this.secondsAt(e);
      const y = e.clientY - this.canvas.getBoundingClientRect().top;
      const row = this.rows().find((r) => y >= r.y && y < r.y + rowHeight);
      const i = row?.lane.spans?.findIndex((s) => at <= s.to) ?? -1; // the span there, or the one that is waited for
      if (i < 0) {
        return;
      }
      const span = row.lane.spans[i];
      const isWait = at < span.from;
      const begin = isWait ? (i ? row.lane.spans[i - 1].to : 0) : span.from;
      const end = isWait ? span.from : span.to;
      const what = !isWait ? span.what : span.waits_for ? `waits for ${span.waits_for}` : "has nothing to do";
      dom.say(this.text, dom.clean(`${row.title}, ${row.lane.name}: ${what}, ${units.duration(end - begin)} from ${units.duration(begin)}`, 300));
    }

    hold(e) {
      this.start = this.secondsAt(e);
    }

    lift(e) {
      const end = this.secondsAt(e);
      const { from, to } = this.range ?? { from: 0, to: this.seconds };
      if (this.start !== undefined && Math.abs(end - this.start) > (to - from) / 50) {
        this.zoom({ from: Math.min(this.start, end), to: Math.max(this.start, end) });
      }
      this.start = undefined;
    }

    zoom(range) {
      const isWhole = !range || range.to - range.from >= this.seconds;
      this.range = isWhole ? null : { from: Math.max(0, range.from), to: Math.min(this.seconds, range.to) };
      this.draw();
    }

    press(e) {
      const { from, to } = this.range ?? { from: 0, to: this.seconds };
      const size = to - from;
      const shift = (by) => {
        const start = Math.min(this.seconds - size, Math.max(0, from + by));
        this.zoom({ from: start, to: start + size });
      };
      const actions = {
        "+": () => this.zoom({ from: from + size / 4, to: to - size / 4 }),
        "=": () => this.zoom({ from: from + size / 4, to: to - size / 4 }),
        "-": () => this.zoom({ from: from - size / 2, to: to + size / 2 }),
        0: () => this.zoom(null),
        ArrowLeft: () => shift(-size / 8),
        ArrowRight: () => shift(size / 8),
      };
      if (actions[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) {
        actions[e.key]();
        e.preventDefault();
        e.stopPropagation();
      }
    }

    // fillTable writes what each lane is busy with and what it waits for, predicted and measured.
    fillTable() {
      const causes = new Set(this.parts.flatMap(([, t]) => t.lanes.flatMap((l) => Object.keys(l.waiting ?? {}))));
      const columns = ["busy", ...causes];
      const head = dom.make("tr", {}, dom.make("th", { scope: "col", text: "lane" }), ...columns.map((c) => dom.make("th", { scope: "col", text: c === "busy" ? "busy" : "waits for " + c })));
      const rows = this.lanes.map((name) => {
        const cells = columns.map((c) => dom.make("td", { "data-run": c === "busy" ? "busy" : "waits for " + c, text: this.parts.map(([title, t]) => this.cell(title, t, name, c)).filter(Boolean).join("; ") || units.none }));
        return dom.make("tr", {}, dom.make("th", { scope: "row", text: name }), ...cells);
      });
      this.table.replaceChildren(dom.make("thead", {}, head), dom.make("tbody", {}, ...rows));
      dom.keyed(this.key, this.lanes, (l) => l, (name) => dom.make("li", {}, dom.swatch({ color: colorIndex(name), dash: [] }), dom.make("span", { text: name })));
    }

    cell(title, t, name, column) {
      const lane = t.lanes.find((l) => l.name === name);
      const seconds = column === "busy" ? lane?.busy : lane?.waiting?.[column];
      return seconds > 0 ? `${title} ${units.duration(seconds)} (${units.percent(seconds / t.seconds, 2)})` : "";
    }
  }

  return { Lanes };
})();
