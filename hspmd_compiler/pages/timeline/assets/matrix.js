// Bytes from each rank, or block of ranks, to each other one.

const MATRIX_SIZE = 420, MATRIX_GUTTER = 84;

class Matrix {
  constructor(section, data) {
    this.names = data.matrix.names;
    this.cells = new Map(data.matrix.cells.map(([from, to, bytes]) => [from * this.names.length + to, bytes]));
    this.most = Math.max(1, ...this.cells.values());
    this.least = Math.min(this.most, ...this.cells.values());
    this.cell = Math.min(Math.max(MATRIX_SIZE / this.names.length, 3), 34);
    this.canvas = element("canvas", section.querySelector(".matrix"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Bytes between ranks. Arrow keys go from cell to cell.");
    this.heard = element("div", section, "", "heard");
    this.heard.setAttribute("aria-live", "polite");
    this.at = null;
    this.canvas.addEventListener("pointermove", (event) => {
      const [from, to] = [event.offsetY, event.offsetX].map((one) => Math.floor((one - MATRIX_GUTTER) / this.cell));
      const inside = Math.min(from, to) >= 0 && Math.max(from, to) < this.names.length;
      if (inside) tip.show(this.text(from, to), event.clientX, event.clientY); else tip.hide();
    });
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.canvas.addEventListener("blur", () => tip.hide());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  text(from, to) {
    const bytes = this.cells.get(from * this.names.length + to);
    const amount = bytes ? bytesText(bytes) : "nothing";
    return `rank ${this.names[from]} sends ${amount}\nto rank ${this.names[to]}`;
  }

  // Light is little, on a scale of powers, as large and small messages are far apart.
  strength(bytes) {
    if (this.least === this.most) return 0.85;
    return 0.2 + 0.8 * Math.log(bytes / this.least) / Math.log(this.most / this.least);
  }

  draw() {
    const size = this.names.length * this.cell, all = MATRIX_GUTTER + size + 1;
    const ink = sized(this.canvas, Math.max(all, 330), all + 40);
    ink.strokeStyle = colours.line;
    ink.strokeRect(MATRIX_GUTTER - 0.5, MATRIX_GUTTER - 0.5, size + 1, size + 1);
    for (const [place, bytes] of this.cells) {
      const from = Math.floor(place / this.names.length), to = place % this.names.length;
      const gap = this.cell > 8 ? 1 : 0;
      ink.fillStyle = `rgba(${colours.heat}, ${this.strength(bytes).toFixed(3)})`;
      ink.fillRect(MATRIX_GUTTER + to * this.cell, MATRIX_GUTTER + from * this.cell, this.cell - gap, this.cell - gap);
    }
    this.paintNames(ink);
    this.paintScale(ink, all + 12);
    if (this.at) {
      ink.strokeStyle = colours.text;
      ink.lineWidth = 2;
      ink.strokeRect(MATRIX_GUTTER + this.at[1] * this.cell, MATRIX_GUTTER + this.at[0] * this.cell, this.cell, this.cell);
      ink.lineWidth = 1;
    }
  }

  paintNames(ink) {
    const every = Math.max(1, Math.ceil(15 / this.cell));
    ink.fillStyle = colours.faint;
    this.names.forEach((name, number) => {
      if (number % every) return;
      const middle = MATRIX_GUTTER + (number + 0.5) * this.cell;
      ink.textAlign = "right";
      ink.fillText(fitted(ink, name, MATRIX_GUTTER - 22), MATRIX_GUTTER - 6, middle);
      ink.save();
      ink.translate(middle, MATRIX_GUTTER - 6);
      ink.rotate(-Math.PI / 2);
      ink.textAlign = "left";
      ink.fillText(fitted(ink, name, MATRIX_GUTTER - 22), 0, 0);
      ink.restore();
    });
    ink.textAlign = "left";
    ink.fillText("to rank →", MATRIX_GUTTER, 8);
    ink.save();
    ink.translate(8, MATRIX_GUTTER);
    ink.rotate(-Math.PI / 2);
    ink.textAlign = "right";
    ink.fillText("← from rank", 0, 0);
    ink.restore();
    ink.textAlign = "left";
  }

  paintScale(ink, top) {
    const steps = 40;
    for (let i = 0; i < steps; i += 1) {
      ink.fillStyle = `rgba(${colours.heat}, ${0.2 + 0.8 * i / (steps - 1)})`;
      ink.fillRect(MATRIX_GUTTER + i * 3, top, 3, 10);
    }
    ink.fillStyle = colours.faint;
    const range = this.least === this.most ? bytesText(this.most) : `${bytesText(this.least)} to ${bytesText(this.most)}`;
    ink.fillText(range, MATRIX_GUTTER + steps * 3 + 8, top + 6);
  }

  key(event) {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    const most = this.names.length - 1;
    this.at = this.at ? this.at.map((one, axis) => Math.min(Math.max(one + by[axis], 0), most)) : [0, 0];
    this.draw();
    const text = this.text(...this.at), corner = this.canvas.getBoundingClientRect();
    tip.show(text, corner.left + MATRIX_GUTTER + this.at[1] * this.cell, corner.top + MATRIX_GUTTER + this.at[0] * this.cell);
    this.heard.textContent = text;
  }
}
