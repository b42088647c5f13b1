// The timeline: of each rank one lane for each source, the estimated one above the measured one.

const FIELDS = 8, LANE = 17;

// Black or white, whichever is read better on a colour.
const inkOn = {};
function readable(colour) {
  const parts = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] > 0.24 ? "#000000" : "#ffffff";
}

// Numbers of a row's spans as columns; starts are counted from the one before.
function columns(flat) {
  const count = flat.length / FIELDS;
  const made = { count, start: new Float64Array(count), end: new Float64Array(count), flat };
  let start = 0;
  for (let i = 0; i < count; i += 1) {
    start += flat[i * FIELDS];
    made.start[i] = start;
    made.end[i] = start + flat[i * FIELDS + 1];
  }
  return made;
}

class Spans extends Rows {
  constructor(section, view, data) {
    super(section, view, data, data.lines.length * (LANE + 1) + 5);
    this.lanes = data.lines.map((line) => line.spans.map(columns));
    this.canvas.setAttribute("aria-label", "Timeline of all ranks. Left and right go from span to span, up and"
      + " down from row to row, plus and minus zoom, shift with left and right pans, 0 shows the whole step.");
  }

  get besideTitle() { return this.data.lines.length > 1 ? 34 : 0; }

  hatch(ink) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.fillStyle = colours.wait;
    brush.fillRect(0, 0, 6, 6);
    brush.strokeStyle = colours.hatch;
    brush.beginPath();
    for (const by of [-6, 0, 6]) { brush.moveTo(by, 6); brush.lineTo(by + 6, 0); }
    brush.stroke();
    return ink.createPattern(tile, "repeat");
  }

  // The first span of a lane that ends after a time; spans of a lane seldom overlap.
  from(lane, time) {
    let low = 0, high = lane.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.start[middle] < time) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - 8);
  }

  paintRow(ink, row, y) {
    const wait = this.hatch(ink);
    this.data.lines.forEach((line, number) => {
      const top = y + 3 + number * (LANE + 1);
      ink.fillStyle = colours.faint;
      this.paintLane(ink, this.lanes[number][row], top, wait);
    });
  }

  paintLane(ink, lane, top, wait) {
    let painted = -1;
    for (let i = this.from(lane, this.view.low); i < lane.count && lane.start[i] <= this.view.high; i += 1) {
      const x = this.x(lane.start[i]), width = (lane.end[i] - lane.start[i]) * this.scale;
      if (x + width < this.gutter) continue;
      if (width < 1 && Math.floor(x + width) === painted) continue;
      painted = Math.floor(x + width);
      const kind = lane.flat[i * FIELDS + 2];
      ink.fillStyle = kind === this.data.wait ? wait : this.data.kinds[kind].colour;
      ink.fillRect(x, top, Math.max(width - (width > 4 ? 1 : 0), 1), LANE);
      const mb = lane.flat[i * FIELDS + 5];
      if (mb >= 0 && width > 18 && kind !== this.data.wait) this.paintNumber(ink, mb, kind, x, top, width);
    }
  }

  paintNumber(ink, mb, kind, x, top, width) {
    const left = Math.max(x, this.gutter), right = Math.min(x + width, this.gutter + this.width);
    if (right - left < 18) return;
    ink.fillStyle = inkOn[this.data.kinds[kind].colour] ||= readable(this.data.kinds[kind].colour);
    ink.textAlign = "center";
    ink.fillText(String(mb), (left + right) / 2, top + LANE / 2 + 1);
    ink.textAlign = "left";
  }

  // Names of the lanes, frames of what is selected and of where the timelines part.
  paintOver(ink, shown, height) {
    const rows = new Map(shown.filter((item) => item.row !== undefined).map((item) => [item.row, item]));
    if (this.data.lines.length > 1) this.paintSources(ink, rows);
    ink.save();
    ink.beginPath();
    ink.rect(this.gutter, AXIS, this.width, height - AXIS);
    ink.clip();
    for (const mark of this.data.marks) this.paintMark(ink, mark, rows.get(mark.row), height);
    if (this.selected && rows.has(this.selected.row)) {
      const { row, line, index } = this.selected, lane = this.lanes[line][row];
      this.frame(ink, colours.text, rows.get(row), line, lane.start[index], lane.end[index]);
    }
    ink.restore();
  }

  paintSources(ink, rows) {
    ink.font = '10px system-ui, "DejaVu Sans", sans-serif';
    ink.fillStyle = colours.faint;
    ink.textAlign = "right";
    for (const item of rows.values())
      this.data.lines.forEach((line, number) => ink.fillText(line.source === "estimated" ? "est." : "meas.",
        this.gutter - 5, this.y(item) + 3 + number * (LANE + 1) + LANE / 2 + 1));
    ink.textAlign = "left";
    ink.font = '12px system-ui, "DejaVu Sans", sans-serif';
  }

  // Over the axis a word at the line where they part first.
  paintAxis(ink, height) {
    super.paintAxis(ink, height);
    const first = this.data.marks.find((mark) => mark.what === "first");
    const x = first ? this.x(first.times[0][1]) : -1;
    if (x < this.gutter || x > this.gutter + this.width) return;
    const text = "they part", width = ink.measureText(text).width + 8;
    const left = Math.min(x - 1, this.gutter + this.width - width);
    ink.fillStyle = colours.mark;
    ink.fillRect(left, 2, width, 16);
    ink.fillStyle = colours.back;
    ink.fillText(text, left + 4, 11);
  }

  paintMark(ink, mark, item, height) {
    if (mark.what === "first") {
      const x = Math.round(this.x(mark.times[0][1])) + 0.5;
      ink.strokeStyle = colours.mark;
      ink.lineWidth = 1;
      ink.setLineDash([4, 3]);
      ink.beginPath();
      ink.moveTo(x, AXIS);
      ink.lineTo(x, height);
      ink.stroke();
      ink.setLineDash([]);
    }
    if (!item) return;
    mark.times.forEach(([low, high], line) => this.frame(ink, colours.mark, item, line, low, high));
  }

  frame(ink, colour, item, line, low, high) {
    ink.strokeStyle = colour;
    ink.lineWidth = 2;
    const top = this.y(item) + 3 + line * (LANE + 1);
    ink.strokeRect(this.x(low), top, Math.max((high - low) * this.scale - 1, 2), LANE);
    ink.lineWidth = 1;
  }

  lineAt(item, y) {
    const line = Math.floor((y - this.y(item) - 3) / (LANE + 1));
    return line >= 0 && line < this.lanes.length ? line : -1;
  }

  textAt(x, y) {
    const item = this.rowAt(y), line = item ? this.lineAt(item, y) : -1;
    if (line < 0) return "";
    const lane = this.lanes[line][item.row], time = this.time(x), most = 1 / this.scale;
    for (let i = this.from(lane, time) + 8; i >= 0 && i >= this.from(lane, time) - 8; i -= 1)
      if (i < lane.count && lane.start[i] <= time && time < Math.max(lane.end[i], lane.start[i] + most))
        return this.text(item.row, line, i);
    return "";
  }

  // Everything that is known of a span.
  text(row, line, index) {
    const lane = this.lanes[line][row], { texts, kinds, lines, rows } = this.data;
    const [, , kind, label, position, mb, peers, bytes] = lane.flat.slice(index * FIELDS, (index + 1) * FIELDS);
    const start = lane.start[index], end = lane.end[index];
    const told = [kinds[kind].title + (mb >= 0 ? ` of micro-batch ${mb}` : "")];
    if (texts[label]) told.push(texts[label]);
    told.push(`${rows[row].title}, ${rows[row].group}${lines.length > 1 ? `, ${lines[line].source}` : ""}`);
    told.push(`takes ${timeText(end - start)}: from ${timeText(start)} to ${timeText(end)}`);
    if (bytes) told.push(bytesText(bytes));
    if (texts[peers]) told.push(`${kind === this.data.wait ? "for" : "with"} rank ${texts[peers]}`);
    if (position >= 0) told.push(`instruction ${position}`);
    const other = this.other(row, line, kind, position, mb);
    if (other !== null) told.push(`${lines[1 - line].source}: ${timeText(other)}`);
    return told.join("\n");
  }

  // Seconds of the same instruction and kind on the other timeline.
  other(row, line, kind, position, mb) {
    if (this.lanes.length < 2 || position < 0) return null;
    const lane = this.lanes[1 - line][row];
    let sum = 0, found = false;
    for (let i = 0; i < lane.count; i += 1) {
      const at = i * FIELDS;
      if (lane.flat[at + 4] !== position || lane.flat[at + 5] !== mb || lane.flat[at + 2] !== kind) continue;
      found = true;
      sum += lane.end[i] - lane.start[i];
    }
    return found ? sum : null;
  }

  // From span to span, and from lane to lane at the same time.
  step(along, down) {
    const rows = this.items.filter((item) => item.row !== undefined);
    const places = rows.flatMap((item) => this.lanes.map((lanes, line) => ({ item, line, lane: lanes[item.row] })))
      .filter((place) => place.lane.count);
    if (!places.length) return;
    let at = this.selected
      ? places.findIndex((place) => place.item.row === this.selected.row && place.line === this.selected.line) : -1;
    if (at < 0) return this.select(places[0], this.from(places[0].lane, this.view.low));
    if (along) return this.select(places[at], this.selected.index + along);
    const time = places[at].lane.start[this.selected.index];
    at = Math.min(Math.max(at + down, 0), places.length - 1);
    let index = 0;
    while (index + 1 < places[at].lane.count && places[at].lane.start[index + 1] <= time) index += 1;
    return this.select(places[at], index);
  }

  select(place, wanted) {
    const lane = place.lane, index = Math.min(Math.max(wanted, 0), lane.count - 1);
    this.selected = { row: place.item.row, line: place.line, index };
    const length = this.view.high - this.view.low;
    if (lane.end[index] < this.view.low || lane.start[index] > this.view.high)
      this.view.set(lane.start[index] - length / 4, lane.start[index] + length * 0.75);
    this.reveal(place.item);
    this.later();
    const x = Math.max(this.x(lane.start[index]), this.gutter);
    this.tell(this.text(place.item.row, place.line, index), x, this.y(place.item) + this.rowHeight - 8);
  }
}
