// Points on a plane: the camera, the drawing with WebGL2 or a canvas, and which point is where. It knows no documents.

// A full draw of a million points may be slow. While the view moves, as many are drawn as fit into a frame.
const FRAME = 16;
const SETTLE = 160;
const MIN_MOVING = 20_000;
const FALLBACK = 50_000;
const CELLS = 256;
const SIDE = 65535;
export const DIMMED = 1;

const VERTEX = `#version 300 es
in vec2 place; in uint colour; in uint state;
uniform vec2 centre; uniform vec2 scale; uniform float size; uniform float strength; uniform bool lit; uniform vec4 light;
uniform sampler2D palette;
flat out vec4 ink;
void main() {
  gl_Position = vec4((place - centre) * scale, 0.0, 1.0);
  gl_PointSize = size;
  vec4 own = lit ? light : texelFetch(palette, ivec2(int(colour), 0), 0);
  float alpha = lit ? 1.0 : strength * (state == 1u ? 0.12 : 1.0);
  ink = vec4(own.rgb * alpha, alpha);
}`;

const FRAGMENT = `#version 300 es
precision mediump float;
flat in vec4 ink;
out vec4 colour;
void main() {
  vec2 from = gl_PointCoord - 0.5;
  if (dot(from, from) > 0.25) discard;
  colour = ink;
}`;

function compiled(gl, kind, source) {
  const shader = gl.createShader(kind);
  gl.shaderSource(shader, source);
  gl.compileShader(shader);
  if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
  return shader;
}

// Draws with WebGL2. All points lie in buffers; moving changes uniforms only.
class WebGlDrawing {
  constructor(gl, x, y) {
    this.gl = gl;
    const program = (this.program = gl.createProgram());
    gl.attachShader(program, compiled(gl, gl.VERTEX_SHADER, VERTEX));
    gl.attachShader(program, compiled(gl, gl.FRAGMENT_SHADER, FRAGMENT));
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    gl.useProgram(program);
    this.uniforms = Object.fromEntries(["centre", "scale", "size", "strength", "lit", "light", "palette"]
      .map((name) => [name, gl.getUniformLocation(program, name)]));
    const places = new Uint16Array(2 * x.length);
    for (let i = 0; i < x.length; i += 1) { places[2 * i] = x[i]; places[2 * i + 1] = y[i]; }
    const place = gl.getAttribLocation(program, "place");
    this.#fill(places);
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, 2, gl.UNSIGNED_SHORT, true, 0, 0);
    this.colours = this.#bytes("colour", x.length);
    this.states = this.#bytes("state", x.length);
    this.lights = gl.createBuffer();
    this.texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.texture);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.lit = 0;
  }

  #fill(values) {
    const { gl } = this;
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    return buffer;
  }

  #bytes(name, count) {
    const { gl } = this;
    const at = gl.getAttribLocation(this.program, name);
    const buffer = this.#fill(new Uint8Array(count));
    gl.enableVertexAttribArray(at);
    gl.vertexAttribIPointer(at, 1, gl.UNSIGNED_BYTE, 0, 0);
    return buffer;
  }

  #replace(buffer, values) {
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, buffer);
    this.gl.bufferSubData(this.gl.ARRAY_BUFFER, 0, values);
  }

  colour(colours, palette) {
    const { gl } = this;
    this.#replace(this.colours, colours);
    const texels = new Uint8Array(4 * 256);
    palette.forEach(([r, g, b], i) => texels.set([r, g, b, 255], 4 * i));
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, 256, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, texels);
  }

  state(states) { this.#replace(this.states, states); }

  light(points) {
    const { gl } = this;
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.lights);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, Uint32Array.from(points), gl.STATIC_DRAW);
    this.lit = points.length;
  }

  draw({ centre, scale, size, strength, count, light, ring }) {
    const { gl, uniforms } = this;
    gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2fv(uniforms.centre, centre);
    gl.uniform2fv(uniforms.scale, scale);
    gl.uniform1f(uniforms.size, size);
    gl.uniform1f(uniforms.strength, strength);
    gl.uniform1i(uniforms.lit, 0);
    gl.drawArrays(gl.POINTS, 0, count);
    if (!this.lit) return;
    gl.uniform1i(uniforms.lit, 1);
    for (const [ink, grown] of [[ring, 10], [light, 6]]) {
      gl.uniform4fv(uniforms.light, ink.map((part) => part / 255).concat(1));
      gl.uniform1f(uniforms.size, size + grown);
      gl.drawElements(gl.POINTS, this.lit, gl.UNSIGNED_INT, 0);
    }
  }
}

// Draws an even sample on a canvas, where there is no WebGL2.
class CanvasDrawing {
  constructor(context, x, y) {
    Object.assign(this, { context, x, y, lights: [] });
    this.states = new Uint8Array(x.length);
  }

  colour(colours, palette) { Object.assign(this, { colours, inks: palette.map((rgb) => `rgb(${rgb.join(" ")})`) }); }

  state(states) { this.states = states; }

  light(points) { this.lights = [...points]; }

  draw({ centre, scale, size, strength, count, light, ring }) {
    const { context, x, y } = this;
    const { width, height } = context.canvas;
    context.clearRect(0, 0, width, height);
    const across = (i) => (1 + (x[i] / SIDE - centre[0]) * scale[0]) * width / 2;
    const down = (i) => (1 - (y[i] / SIDE - centre[1]) * scale[1]) * height / 2;
    for (let i = 0; i < Math.min(count, FALLBACK); i += 1) {
      context.globalAlpha = strength * (this.states[i] === DIMMED ? 0.12 : 1);
      context.fillStyle = this.inks[this.colours[i]];
      context.fillRect(across(i) - size / 2, down(i) - size / 2, size, size);
    }
    context.globalAlpha = 1;
    for (const [ink, grown] of [[ring, 10], [light, 6]]) {
      context.fillStyle = `rgb(${ink.join(" ")})`;
      for (const i of this.lights) {
        context.beginPath();
        context.arc(across(i), down(i), (size + grown) / 2, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }
}

// Which points lie in each cell of the plane.
class Grid {
  constructor(x, y) {
    this.starts = new Uint32Array(CELLS * CELLS + 1);
    this.points = new Uint32Array(x.length);
    const cell = (i) => (y[i] >> 8) * CELLS + (x[i] >> 8);
    for (let i = 0; i < x.length; i += 1) this.starts[cell(i) + 1] += 1;
    for (let c = 0; c < CELLS * CELLS; c += 1) this.starts[c + 1] += this.starts[c];
    const next = this.starts.slice(0, -1);
    // In the order of points, so that a part of a cell is a sample too.
    for (let i = 0; i < x.length; i += 1) { this.points[next[cell(i)]] = i; next[cell(i)] += 1; }
  }

  // Calls `take` for the points of all cells that touch the rectangle.
  within([x0, y0, x1, y1], take) {
    const cell = (v) => Math.min(CELLS - 1, Math.max(0, Math.floor(v) >> 8));
    for (let row = cell(y0); row <= cell(y1); row += 1) {
      const [from, to] = [this.starts[row * CELLS + cell(x0)], this.starts[row * CELLS + cell(x1) + 1]];
      for (let at = from; at < to; at += 1) take(this.points[at]);
    }
  }
}

// The even-odd rule, by the formula of the server.
export function isInside(x, y, polygon) {
  let inside = false;
  let [x0, y0] = polygon[polygon.length - 1];
  for (const [x1, y1] of polygon) {
    if ((y0 > y) !== (y1 > y) && x < (x1 - x0) * (y - y0) / (y1 - y0) + x0) inside = !inside;
    [x0, y0] = [x1, y1];
  }
  return inside;
}

export class Plane {
  constructor(canvas, { x, y }, moved) {
    Object.assign(this, { canvas, x, y, moved, count: x.length, zoom: 1, centre: [0.5, 0.5] });
    const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, premultipliedAlpha: true });
    this.drawing = gl ? new WebGlDrawing(gl, x, y) : new CanvasDrawing(canvas.getContext("2d"), x, y);
    this.usesWebGl = Boolean(gl);
    this.grid = new Grid(x, y);
    this.moving = Math.min(this.count, 200_000);
    this.states = new Uint8Array(this.count);
    this.light = [255, 214, 0];
    this.ring = [20, 20, 20];
    // A lost context comes back without its buffers.
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => {
      this.drawing = new WebGlDrawing(gl, x, y);
      this.drawing.colour(this.colours, this.palette);
      this.drawing.state(this.states);
      this.drawing.light(this.lights ?? []);
      this.draw();
    });
    new ResizeObserver(() => this.#resize()).observe(canvas);
    this.#resize();
  }

  #resize() {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight].map((v) => Math.max(1, Math.round(v * ratio)));
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    if (this.palette) this.draw();
  }

  colour(colours, palette) {
    Object.assign(this, { colours, palette });
    this.drawing.colour(colours, palette);
    this.draw();
  }

  // Dims all points but those of `keep`; `null` dims none.
  select(keep) {
    this.states.fill(keep ? DIMMED : 0);
    for (const point of keep ?? []) this.states[point] = 0;
    this.drawing.state(this.states);
    this.draw();
  }

  lightUp(points) {
    this.lights = points;
    this.drawing.light(points);
    this.draw();
  }

  // Pixels of the page per width of the map.
  get #unit() { return 0.94 * Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * this.zoom; }

  toScreen(x, y) {
    return [this.canvas.clientWidth / 2 + (x / SIDE - this.centre[0]) * this.#unit,
      this.canvas.clientHeight / 2 - (y / SIDE - this.centre[1]) * this.#unit];
  }

  toPlane(across, down) {
    return [(this.centre[0] + (across - this.canvas.clientWidth / 2) / this.#unit) * SIDE,
      (this.centre[1] - (down - this.canvas.clientHeight / 2) / this.#unit) * SIDE];
  }

  // The part of the plane that is seen: left, bottom, right, top.
  get view() {
    const [x0, y1] = this.toPlane(0, 0);
    const [x1, y0] = this.toPlane(this.canvas.clientWidth, this.canvas.clientHeight);
    return [x0, y0, x1, y1];
  }

  pan(across, down) {
    this.centre = [this.centre[0] - across / this.#unit, this.centre[1] + down / this.#unit]
      .map((v) => Math.min(1, Math.max(0, v)));
    this.#move();
  }

  // Zooms by a factor; the place at these pixels stays.
  zoomBy(factor, across = this.canvas.clientWidth / 2, down = this.canvas.clientHeight / 2) {
    const before = this.toPlane(across, down);
    this.zoom = Math.min(400, Math.max(0.7, this.zoom * factor));
    const after = this.toPlane(across, down);
    this.centre = [0, 1].map((axis) => Math.min(1, Math.max(0, this.centre[axis] + (before[axis] - after[axis]) / SIDE)));
    this.#move();
  }

  show(x, y, zoom) {
    Object.assign(this, { centre: [x / SIDE, y / SIDE], zoom });
    this.#move();
  }

  #move() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => { this.last = null; this.draw(); }, SETTLE);
    this.waiting ??= requestAnimationFrame((now) => {
      this.waiting = null;
      const took = this.last ? now - this.last : FRAME;
      this.last = now;
      if (took > 2 * FRAME) this.moving = Math.max(MIN_MOVING, Math.floor(this.moving * 0.7));
      else if (took < 1.3 * FRAME) this.moving = Math.min(this.count, Math.ceil(this.moving * 1.2));
      this.#draw(this.moving);
      this.moved(false);
    });
  }

  draw() {
    this.#draw(this.count);
    this.canvas.dataset.drawn = String(this.usesWebGl ? this.count : Math.min(this.count, FALLBACK));
    this.moved(true);
  }

  #draw(count) {
    const ratio = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const seen = this.count / Math.max(1, this.zoom * this.zoom);
    const size = Math.min(9, Math.max(1.6, 0.5 * Math.sqrt(width * height / Math.max(1, seen))));
    this.drawing.draw({
      centre: this.centre, scale: [2 * this.#unit / width, 2 * this.#unit / height], size: size * ratio,
      strength: Math.min(0.9, Math.max(0.35, size / 4)), count: Math.min(count, this.count), light: this.light, ring: this.ring,
    });
  }

  // The point nearest to these pixels, at most `reach` pixels away; `null` if there is none.
  pick(across, down, reach = 8) {
    const [x, y] = this.toPlane(across, down);
    const far = reach / this.#unit * SIDE;
    let [best, least] = [null, far * far];
    this.grid.within([x - far, y - far, x + far, y + far], (i) => {
      const distance = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
      if (distance < least || (distance === least && best === null)) [best, least] = [i, distance];
    });
    return best;
  }

  // The points inside a polygon, in rising order.
  inside(polygon) {
    const [xs, ys] = [polygon.map(([x]) => x), polygon.map(([, y]) => y)];
    const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
    const found = [];
    this.grid.within(box, (i) => { if (isInside(this.x[i], this.y[i], polygon)) found.push(i); });
    return Uint32Array.from(found).sort();
  }

  // How many points are seen, and the first `most` of them.
  seen(most) {
    const [x0, y0, x1, y1] = this.view;
    let count = 0;
    const first = [];
    for (let i = 0; i < this.count; i += 1) {
      if (this.x[i] < x0 || this.x[i] > x1 || this.y[i] < y0 || this.y[i] > y1) continue;
      if (first.length < most) first.push(i);
      count += 1;
    }
    return { count, first };
  }
}
