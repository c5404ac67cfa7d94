// Attention weights as colours. The server codes the square roots of weights, which are the opacity
// of one colour: small weights are seen, and light and dark need no different numbers.

import { bytesOf, color } from "./dom.js";

/** The roots that the server coded, as integers, with the weight of an integer. */
export function roots(coded) {
  const bytes = bytesOf(coded.data);
  const numbers = coded.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
  const unit = coded.largest / (2 ** coded.bits - 1);
  return { numbers, shift: coded.bits - 8, weight: (index) => (numbers[index] * unit) ** 2 };
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

/** Draw a matrix into a canvas, one pixel a cell. */
export function drawMatrix(canvas, matrix, rows, columns, colors) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const { numbers, shift } = matrix;
  for (let i = 0; i < pixels.length; i++) pixels[i] = colors[numbers[i] >> shift];
  context.putImageData(image, 0, 0);
}
