// Draws attention as three pictures, with a row for each query and a column for each token. The scale of weights is
// logarithmic, so that small ones are visible. The scale of differences is a square root, and the same for every codec.

const DECADES = 4; // from 0.01% to 100%
const LARGEST_DIFFERENCE = 0.05;

const channels = (colour) => colour.trim().match(/[\da-f]{2}/gi).map((byte) => parseInt(byte, 16));
const mix = (a, b, t) => a.map((x, i) => Math.round(x + (b[i] - x) * t));

/** Returns the place of a value on its scale: 0 to 1, or -1 to 1. */
export const SCALES = {
  weight: (x) => Math.max(0, Math.min(1, 1 + Math.log10(Math.max(x, 1e-30)) / DECADES)),
  difference: (x) => Math.sign(x) * Math.min(1, Math.sqrt(Math.abs(x) / LARGEST_DIFFERENCE)),
  /** The scale of plain vectors, which ends at `top`. */
  value: (top) => (x) => Math.max(-1, Math.min(1, x / top)),
};

/**
 * Draws values [row][column] on a canvas, in the resolution in which it is shown. A pixel of several columns shows the
 * one with the largest magnitude. `seen` returns the number of columns in a row.
 */
export function draw(canvas, values, columns, scale, seen) {
  const style = getComputedStyle(canvas);
  const colour = (name) => channels(style.getPropertyValue(name));
  const [unseen, none, more, less] = ["--unseen", "--none", "--more", "--less"].map(colour);
  const density = globalThis.devicePixelRatio ?? 1;
  const rows = values.length / columns;
  const width = Math.max(1, Math.round(canvas.clientWidth * density));
  const height = Math.max(1, Math.round(canvas.clientHeight * density));
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const word = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const palette = Uint32Array.from({ length: 513 }, (_, i) => word(i < 256 ? mix(none, less, (256 - i) / 256) : mix(none, more, (i - 256) / 256)));
  const [blank, gap] = [word(unseen), rows <= 32 ? Math.round(density) : 0];
  for (let y = 0; y < height; y++) {
    const row = Math.min(rows - 1, Math.floor((y * rows) / height));
    const isGap = gap > 0 && row > 0 && y - Math.ceil((row * height) / rows) < gap;
    for (let x = 0; x < width; x++) {
      const first = Math.floor((x * columns) / width);
      const end = Math.max(first + 1, Math.floor(((x + 1) * columns) / width));
      if (isGap || first >= seen(row)) {
        pixels[y * width + x] = blank;
        continue;
      }
      let t = 0;
      for (let column = first; column < Math.min(end, seen(row)); column++) {
        const other = scale(values[row * columns + column]);
        if (Math.abs(other) > Math.abs(t)) t = other;
      }
      pixels[y * width + x] = palette[Math.round(256 + 256 * t)];
    }
  }
  context.putImageData(image, 0, 0);
}

/** Returns the row and the column under a pointer. */
export function cell(canvas, event, rows, columns) {
  const box = canvas.getBoundingClientRect();
  const of = (at, size, count) => Math.max(0, Math.min(count - 1, Math.floor((at / size) * count)));
  return [of(event.clientY - box.top, box.height, rows), of(event.clientX - box.left, box.width, columns)];
}
