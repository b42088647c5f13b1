// Bytes that each rank holds over time, against what its device has.

const MEMORY_ROW = 40;

class Memory extends Rows {
  constructor(section, view, data) {
    super(section, view, data, MEMORY_ROW);
    this.curves = data.lines.map((line) => line.memory.map((flat) => {
      const times = [], bytes = [];
      let now = 0;
      for (let i = 0; i < flat.length; i += 2) { now += flat[i]; times.push(now); bytes.push(flat[i + 1]); }
      return { times, bytes, peak: bytes.reduce((most, one) => Math.max(most, one), 0) };
    }));
    const most = Math.max(1, ...this.curves.map((rows) => rows.reduce((peak, one) => Math.max(peak, one.peak), 0)));
    this.tops = data.rows.map((row) => Math.max(row.capacity || most,
      ...this.curves.map((rows) => rows[data.rows.indexOf(row)].peak)) * 1.06);
    this.canvas.setAttribute("aria-label", "Memory of each rank over time. Up and down go from rank to rank,"
      + " left and right from change to change.");
  }

  paintTitle(ink, title, y) {
    ink.fillStyle = colours.text;
    ink.fillText(fitted(ink, title, this.gutter - 16), 12, y + 9);
  }

  // Steps of a curve as points of the canvas.
  path(ink, curve, y, row, closed) {
    const base = y + MEMORY_ROW - 3, room = MEMORY_ROW - 6;
    const height = (bytes) => base - room * bytes / this.tops[row];
    ink.beginPath();
    ink.moveTo(this.x(curve.times[0]), closed ? base : height(curve.bytes[0]));
    curve.times.forEach((time, i) => {
      ink.lineTo(this.x(time), height(curve.bytes[i]));
      ink.lineTo(this.x(i + 1 < curve.times.length ? curve.times[i + 1] : this.view.end), height(curve.bytes[i]));
    });
    if (closed) { ink.lineTo(this.x(this.view.end), base); ink.closePath(); }
  }

  paintRow(ink, row, y) {
    const capacity = this.data.rows[row].capacity, base = y + MEMORY_ROW - 3;
    const limit = base - (MEMORY_ROW - 6) * capacity / this.tops[row];
    const present = this.curves.map((rows) => rows[row]).filter((curve) => curve.times.length);
    if (present.length) {
      this.path(ink, present[0], y, row, true);
      ink.fillStyle = colours.held;
      ink.fill();
      if (capacity && present[0].peak > capacity) {
        ink.save();
        ink.beginPath();
        ink.rect(this.gutter, y, this.width, limit - y);
        ink.clip();
        this.path(ink, present[0], y, row, true);
        ink.fillStyle = colours.mark;
        ink.fill();
        ink.restore();
      }
    }
    for (const curve of present.slice(1)) {
      this.path(ink, curve, y, row, false);
      ink.strokeStyle = capacity && curve.peak > capacity ? colours.mark : colours.text;
      ink.lineWidth = 1.5;
      ink.stroke();
    }
    ink.strokeStyle = colours.line;
    ink.lineWidth = 1;
    ink.strokeRect(this.gutter, base + 0.5, this.width, 0);
    if (!capacity) return;
    ink.strokeStyle = colours.faint;
    ink.setLineDash([5, 3]);
    ink.beginPath();
    ink.moveTo(this.gutter, Math.round(limit) + 0.5);
    ink.lineTo(this.gutter + this.width, Math.round(limit) + 0.5);
    ink.stroke();
    ink.setLineDash([]);
  }

  // The peaks, under the rank's name.
  paintOver(ink, shown) {
    ink.font = '11px system-ui, "DejaVu Sans", sans-serif';
    for (const item of shown) if (item.row !== undefined) {
      const { capacity } = this.data.rows[item.row];
      const peaks = this.curves.map((rows) => rows[item.row].peak);
      ink.fillStyle = capacity && Math.max(...peaks) > capacity ? colours.mark : colours.faint;
      const text = `peak ${bytesText(peaks[0])}${peaks.length > 1 ? `, run ${bytesText(peaks[1])}` : ""}`;
      ink.fillText(fitted(ink, text, this.gutter - 16), 12, this.y(item) + 22);
      if (capacity) ink.fillText(`of ${bytesText(capacity)}`, 12, this.y(item) + 34);
    }
    ink.font = '12px system-ui, "DejaVu Sans", sans-serif';
  }

  textAt(x, y) {
    const item = this.rowAt(y);
    return item ? this.text(item.row, this.time(x)) : "";
  }

  text(row, time) {
    const { title, group, capacity } = this.data.rows[row];
    const told = [`${title}, ${group}`, `at ${timeText(time)}`];
    this.curves.forEach((rows, line) => {
      const curve = rows[row];
      let at = -1;
      while (at + 1 < curve.times.length && curve.times[at + 1] <= time) at += 1;
      if (at >= 0) told.push(`${this.data.lines[line].source}: holds ${bytesText(curve.bytes[at])}`
        + `, at most ${bytesText(curve.peak)}`);
    });
    if (capacity) told.push(`its device has ${bytesText(capacity)}`);
    return told.join("\n");
  }

  step(along, down) {
    const rows = this.items.filter((item) => item.row !== undefined);
    let at = this.selected ? rows.findIndex((item) => item.row === this.selected.row) : -1;
    const time = this.selected ? this.selected.time : this.view.low;
    at = at < 0 ? 0 : Math.min(Math.max(at + down, 0), rows.length - 1);
    const times = this.curves.flatMap((lines) => lines[rows[at].row].times).sort((one, two) => one - two);
    const next = along > 0 ? times.find((one) => one > time) : times.filter((one) => one < time).pop();
    this.selected = { row: rows[at].row, time: along && next !== undefined ? next : time };
    if (this.selected.time < this.view.low || this.selected.time > this.view.high)
      this.view.set(this.selected.time, this.selected.time + this.view.high - this.view.low);
    this.reveal(rows[at]);
    this.tell(this.text(rows[at].row, this.selected.time), this.x(this.selected.time), this.y(rows[at]) + MEMORY_ROW);
  }
}
