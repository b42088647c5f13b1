// Rows of ranks under a time axis, of which only those in sight are drawn; a subclass paints what is in one.

class Rows {
  constructor(section, view, data, rowHeight) {
    Object.assign(this, { section, view, data, rowHeight, selected: null, first: 0 });
    this.box = section.querySelector(".rows");
    this.spacer = element("div", this.box);
    this.canvas = element("canvas", this.spacer);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.heard = element("div", section, "", "heard");
    this.heard.setAttribute("aria-live", "polite");
    this.place(data.rows.map((row, index) => index));
    view.listeners.push(() => this.later());
    this.box.addEventListener("scroll", () => this.later());
    this.listen();
  }

  // Which rows there are, by their index in the data, with a head over each group.
  place(indices) {
    this.items = [];
    let top = 0, group = null;
    for (const index of indices) {
      const row = this.data.rows[index];
      if (row.group !== group) {
        this.items.push({ head: row.group, top, height: 20 });
        group = row.group;
        top += 20;
      }
      this.items.push({ row: index, top, height: this.rowHeight });
      top += this.rowHeight;
    }
    this.total = top + AXIS;
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  get gutter() { return Math.min(GUTTER, Math.round(this.box.clientWidth * 0.3)); }
  get width() { return this.box.clientWidth - this.gutter - 8; }
  get scale() { return this.width / (this.view.high - this.view.low); }
  x(ns) { return this.gutter + (ns - this.view.low) * this.scale; }
  time(x) { return this.view.low + (x - this.gutter) / this.scale; }
  y(item) { return AXIS + item.top - this.box.scrollTop; }

  draw() {
    const height = Math.min(this.total, Math.max(240, Math.round(innerHeight * 0.62)));
    this.box.style.height = `${height}px`;
    this.spacer.style.height = `${this.total}px`;
    const ink = sized(this.canvas, this.box.clientWidth, height);
    this.first = 0;
    const shown = this.items.filter((item) => this.y(item) < height && this.y(item) + item.height > AXIS);
    for (const item of shown) {
      const y = this.y(item);
      if (item.head !== undefined) this.paintHead(ink, item.head, y);
      else {
        this.paintTitle(ink, this.data.rows[item.row].title, y);
        ink.save();
        ink.beginPath();
        ink.rect(this.gutter, AXIS, this.width, height - AXIS);
        ink.clip();
        this.paintRow(ink, item.row, y);
        ink.restore();
      }
    }
    this.paintOver(ink, shown, height);
    this.paintAxis(ink, height);
  }

  paintHead(ink, text, y) {
    ink.fillStyle = colours.head;
    ink.fillRect(0, y, this.box.clientWidth, 20);
    ink.fillStyle = colours.text;
    ink.fillText(text, 6, y + 10);
  }

  paintTitle(ink, title, y) {
    ink.fillStyle = colours.text;
    ink.fillText(fitted(ink, title, this.gutter - 16 - this.besideTitle), 12, y + this.rowHeight / 2);
  }

  paintAxis(ink, height) {
    ink.fillStyle = colours.back;
    ink.fillRect(0, 0, this.box.clientWidth, AXIS);
    ink.strokeStyle = colours.line;
    ink.lineWidth = 1;
    ink.textAlign = "center";
    for (const [at, text] of ticks(this.view.low, this.view.high, this.width / 110)) {
      const x = Math.round(this.x(at)) + 0.5;
      ink.beginPath();
      ink.moveTo(x, AXIS - 5);
      ink.lineTo(x, AXIS);
      ink.stroke();
      ink.fillStyle = colours.faint;
      ink.fillText(text, Math.min(Math.max(x, this.gutter + 8), this.box.clientWidth - 34), 10);
    }
    ink.textAlign = "left";
    ink.beginPath();
    ink.moveTo(0, AXIS - 0.5);
    ink.lineTo(this.box.clientWidth, AXIS - 0.5);
    ink.stroke();
  }

  paintOver() {}

  // The row under a point of the canvas.
  rowAt(y) {
    return this.items.find((item) => item.row !== undefined && y >= Math.max(AXIS, this.y(item))
      && y < this.y(item) + item.height);
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      if (event.offsetX < this.gutter || event.shiftKey) return; // the rows scroll
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.view.pan(event.deltaX / this.width);
      else this.view.zoom(1.0015 ** event.deltaY, this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, y: event.clientY, low: this.view.low, top: this.box.scrollTop };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) { this.hover(event); return; }
      const by = (drag.x - event.clientX) / this.scale;
      this.view.set(drag.low + by, drag.low + by + this.view.high - this.view.low);
      this.box.scrollTop = drag.top + drag.y - event.clientY;
      tip.hide();
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
    canvas.addEventListener("pointerleave", () => tip.hide());
    canvas.addEventListener("blur", () => tip.hide());
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  hover(event) {
    const text = event.offsetX < this.gutter ? "" : this.textAt(event.offsetX, event.offsetY);
    if (text) tip.show(text, event.clientX, event.clientY);
    else tip.hide();
  }

  key(event) {
    const view = this.view, far = this.box.clientHeight * 0.8;
    const does = {
      "+": () => view.zoom(0.5), "=": () => view.zoom(0.5), "-": () => view.zoom(2), "0": () => view.all(),
      ArrowLeft: () => event.shiftKey ? view.pan(-0.2) : this.step(-1, 0),
      ArrowRight: () => event.shiftKey ? view.pan(0.2) : this.step(1, 0),
      ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1),
      PageUp: () => { this.box.scrollTop -= far; }, PageDown: () => { this.box.scrollTop += far; },
      Escape: () => { this.selected = null; tip.hide(); this.later(); },
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  // Show what is told of a place, and say it.
  tell(text, x, y) {
    const corner = this.canvas.getBoundingClientRect();
    tip.show(text, corner.left + x, corner.top + y);
    this.heard.textContent = text;
  }

  reveal(item) {
    const low = item.top, high = item.top + item.height + AXIS;
    if (this.box.scrollTop > low) this.box.scrollTop = low;
    else if (this.box.scrollTop + this.box.clientHeight < high) this.box.scrollTop = high - this.box.clientHeight;
  }
}
