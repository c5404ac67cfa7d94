// Attention weights as colours. The server codes the square roots of weights, which are the opacity
// of one colour: small weights are seen, and light and dark need no different numbers.

import { bytesOf, color } from "./dom.js";

/** The roots that the server coded, as integers up to `full`, with the weight at an index. */
export function roots(coded) {
  const bytes = bytesOf(coded.data);
  const numbers = coded.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
  const full = 2 ** coded.bits - 1;
  const unit = coded.largest / full;
  return { numbers, full, weight: (index) => (numbers[index] * unit) ** 2 };
}

/** The colours of the 256 opacities, as the bytes of a canvas. */
export function ramp() {
  const [red, green, blue] = rgb(color("accent"));
  return Uint32Array.from({ length: 256 }, (_, alpha) => ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0);
}

/** The three bytes of a colour such as #0b5cad. */
export function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/**
 * Draw a matrix into a canvas, one pixel a cell. relative: the full colour is the largest weight of
 * the matrix, and not a weight of one, which no weight of a long text comes near.
 */
export function drawMatrix(canvas, matrix, rows, columns, colors, relative) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const { numbers, full } = matrix;
  const unit = 255 / (relative ? numbers.reduce((most, one) => (one > most ? one : most), 1) : full);
  for (let i = 0; i < pixels.length; i++) pixels[i] = colors[(numbers[i] * unit + 0.5) | 0];
  context.putImageData(image, 0, 0);
}
