// One step of recurrent cells, forward and backward, per row [n, ...]: the gates and states of ops/nn/rnn_cell.py.
//
// Gates and states are float32 and are updated in place; hidden states, outputs and gradients of gates have any dtype.
#include "../include/parallel.h"
#include "../include/simd_math.h"

using namespace simd;

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// work(row) for rows of `width` elements.
template <class Work>
static void for_each_row(const Array& rows, int64 width, const Work& work) {
    parallel_rows(rows.size[1], width, [&](int64 begin, int64 end) {
        for (int64 row = begin; row < end; row++) work(row);
    });
}

static void store(const Array& array, int64 row, const float* values) {
    if (array) write_floats(values, array.data, array.kind, array.offset(0, row), array.stride[2], array.size[2]);
}

// gates [n, 4 H]: the sums in, i, f, g, o out. cell [n, H] in place. Written: previous [n, H], hidden (or absent), out.
static void lstm_step(Array gates, Array cell, Array previous, Array hidden, Array out) {
    int64 width = cell.size[2];
    for_each_row(cell, 16 * width, [=](int64 row) {
        Scratch<float> state(width);
        if (!state) return;
        float *i = address<float>(gates, 0, row), *f = i + width, *g = f + width, *o = g + width, *h = state;
        float *c = address<float>(cell, 0, row), *before = address<float>(previous, 0, row);
        SIMD for (int64 k = 0; k < width; k++) {
            float in = sigmoid(i[k]), keep = sigmoid(f[k]), add = tanhf(g[k]), show = sigmoid(o[k]), old = c[k];
            float now = keep * old + in * add;
            i[k] = in, f[k] = keep, g[k] = add, o[k] = show, before[k] = old, c[k] = now;
            h[k] = show * tanhf(now);
        }
        store(hidden, row, h), store(out, row, h);
    });
}
KERNEL(lstm_step)

// dc [n, H]: of the new cell state in, of the previous one out. dy may be absent. dgates [n, 4 H] is written.
static void lstm_step_backward(Array gates, Array previous, Array dy, Array dh, Array dc, Array dgates) {
    int64 width = dc.size[2];
    for_each_row(dc, 16 * width, [=](int64 row) {
        Scratch<float> dy_buffer(width), dh_buffer(width), wide(4 * width);
        if (!(dy_buffer && dh_buffer && wide)) return;
        const float *i = address<float>(gates, 0, row), *f = i + width, *g = f + width, *o = g + width;
        const float *before = address<float>(previous, 0, row), *push = read_row(dh, 0, row, dh_buffer);
        float *down = address<float>(dc, 0, row), *di = wide, *df = di + width, *dg = df + width, *dout = dg + width;
        memset(dy_buffer, 0, width * sizeof(float));
        const float* more = dy ? read_row(dy, 0, row, dy_buffer) : dy_buffer;
        SIMD for (int64 k = 0; k < width; k++) {
            float in = i[k], keep = f[k], add = g[k], show = o[k], t = tanhf(keep * before[k] + in * add);
            float dhidden = push[k] + more[k], d = down[k] + dhidden * show * (1.0f - t * t);
            di[k] = d * add * (in * (1.0f - in)), df[k] = d * before[k] * (keep * (1.0f - keep));
            dg[k] = d * in * (1.0f - add * add), dout[k] = dhidden * t * (show * (1.0f - show));
            down[k] = d * keep;
        }
        store(dgates, row, wide);
    });
}
KERNEL(lstm_step_backward)

// gates [n, 3 H]: products with the input in, r, z, n out; hidden_gates [n, 3 H]: with the state. state [n, H] in place.
// Written: hidden_n [n, H], the last third of hidden_gates; hidden (or absent), out.
static void gru_step(Array gates, Array hidden_gates, Array state, Array hidden_n, Array hidden, Array out) {
    int64 width = state.size[2];
    for_each_row(state, 16 * width, [=](int64 row) {
        float *r = address<float>(gates, 0, row), *z = r + width, *n = z + width, *s = address<float>(state, 0, row);
        const float *hr = address<float>(hidden_gates, 0, row), *hz = hr + width, *hn = hz + width;
        float* saved = address<float>(hidden_n, 0, row);
        SIMD for (int64 k = 0; k < width; k++) {
            float reset = sigmoid(r[k] + hr[k]), keep = sigmoid(z[k] + hz[k]), h = hn[k], add = tanhf(n[k] + reset * h);
            r[k] = reset, z[k] = keep, n[k] = add, saved[k] = h;
            s[k] = (s[k] - add) * keep + add;
        }
        store(hidden, row, s), store(out, row, s);
    });
}
KERNEL(gru_step)

// dh [n, H]: of the new state in, of the previous one out, without what the products pass on. dx_gates, dh_gates
// [n, 3 H] are written.
static void gru_step_backward(Array gates, Array hidden_n, Array previous, Array dy, Array dh, Array dx_gates,
                              Array dh_gates) {
    int64 width = dh.size[2];
    for_each_row(dh, 16 * width, [=](int64 row) {
        Scratch<float> dy_buffer(width), old_buffer(width), wide(4 * width);
        if (!(dy_buffer && old_buffer && wide)) return;
        const float *r = address<float>(gates, 0, row), *z = r + width, *n = z + width;
        const float *hn = address<float>(hidden_n, 0, row), *old = read_row(previous, 0, row, old_buffer);
        const float* more = read_row(dy, 0, row, dy_buffer);
        float *push = address<float>(dh, 0, row), *dr = wide, *dz = dr + width, *dn = dz + width, *dhn = dn + width;
        SIMD for (int64 k = 0; k < width; k++) {
            float d = push[k] + more[k], reset = r[k], keep = z[k], add = n[k];
            float dadd = d * (1.0f - keep) * (1.0f - add * add);
            dn[k] = dadd, dhn[k] = dadd * reset, dr[k] = dadd * hn[k] * (reset * (1.0f - reset));
            dz[k] = d * (old[k] - add) * (keep * (1.0f - keep));
            push[k] = d * keep;
        }
        store(dx_gates, row, wide);
        memcpy(dn, dhn, width * sizeof(float));
        store(dh_gates, row, wide);
    });
}
KERNEL(gru_step_backward)
