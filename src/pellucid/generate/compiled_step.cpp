// All blocks of a network for one more token of one text: a list of operations that one team of threads works through.
//
// Threads divide the entries of each operation among themselves and wait for each other behind it, where the next one
// reads what another thread wrote. `compiled_step.py` writes the list down from the network's modules and compiles this
// file, which has the products of `row_products.cpp`. A vector is one position's, the heads of q, k and v one after
// another.
#include "row_products.cpp"

#include <omp.h>

#include <algorithm>
#include <cmath>

namespace {

struct Text {  // one text of a cache, from its first position on, of which `length` are filled
    float *keys, *values;
    Index layer_stride, capacity, length;  // a layer is [kv_head, capacity, d_head]
};

struct Team {
    Index thread, n_threads;
};

struct Part {  // what one thread computes of an operation: the numbers from begin to end
    Index begin, end;
    Part(Index n, Team team)
        : begin(n * team.thread / team.n_threads), end(n * (team.thread + 1) / team.n_threads) {}
};

// e^x within two units in the last place, written so that compilers turn a loop over it into vectors
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23: a sum with it has no digits behind the point
    const float n = (x * 1.44269504f + ROUNDING) - ROUNDING;
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
    float sum = 1.0f / 5040;
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = sum * r + c;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return sum * power;
}

inline float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }
inline float gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678f)); }
inline float gelu_tanh(float x) { return x * logistic(1.59576912f * (x + 0.044715f * x * x * x)); }
inline float relu(float x) { return x > 0.0f ? x : 0.0f; }
inline float relu2(float x) { return relu(x) * relu(x); }
inline float silu(float x) { return x * logistic(x); }
inline float quick_gelu(float x) { return x * logistic(1.702f * x); }
inline float hyperbolic_tangent(float x) { return std::tanh(x); }

struct Norm {  // y = gain (x - mu) / sigma + bias (layer norm), or gain x / rho, of each of `n_groups` vectors
    const float* x;
    float* y;
    const float *gain, *bias;  // of all groups; null: 1 and 0
    Index n_groups, width;
    float eps;
    int32_t centred, eps_outside;

    void run(const Text&, Team team) const {
        const Part part(n_groups, team);
        for (Index g = part.begin; g < part.end; ++g) one(g * width);
    }
    void one(Index at) const {
        const float* from = x + at;
        float sum = 0.0f, squares = 0.0f;
        if (centred) {
#pragma omp simd reduction(+ : sum)
            for (Index i = 0; i < width; ++i) sum += from[i];
        }
        const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (Index i = 0; i < width; ++i) squares += (from[i] - mean) * (from[i] - mean);
        const float mean_square = squares / width;
        const float divisor = eps_outside ? std::sqrt(mean_square) + eps : std::sqrt(mean_square + eps);
        for (Index i = 0; i < width; ++i) {
            const float normalized = (from[i] - mean) / divisor;
            y[at + i] = (gain ? gain[at + i] * normalized : normalized) + (bias ? bias[at + i] : 0.0f);
        }
    }
};

struct Product {  // y = x W^T + b
    const float* x;
    float* y;
    const void *weights, *scales;
    const float* bias;
    Index n_out, n_in;
    int32_t format;  // 0: float32, 1: int8, 2: int4

    void run(const Text&, Team team) const {
        if (format == 0) rows(Float32{(const float*)weights}, team);
        if (format == 1) rows(Int8{(const int8_t*)weights, (const float*)scales}, team);
        if (format == 2) rows(Int4{(const uint8_t*)weights, (const uint16_t*)scales}, team);
    }
    template <typename W>
    void rows(const W& w, Team team) const {
        const Part part(n_out, team);
        outputs(w, bias, x, y, part.begin, part.end, {1, n_out, n_in});
    }
};

struct Append {  // q and k rotated for their position; k and v written behind those that the cache keeps
    float *q, *k;
    const float* v;
    const float *cos, *sin;  // [position, plane]
    Index layer, n_heads, n_kv_heads, d_head, n_planes;
    int32_t pairs;  // plane p has the coordinates 2p and 2p + 1, or else p and p + n_planes

    void run(const Text& text, Team team) const {
        const Part part(n_heads + n_kv_heads, team);
        for (Index h = part.begin; h < part.end; ++h) {
            if (h < n_heads) {
                rotate(q + h * d_head, text.length);
                continue;
            }
            const Index g = h - n_heads, at = layer * text.layer_stride + (g * text.capacity + text.length) * d_head;
            rotate(k + g * d_head, text.length);
            std::copy_n(k + g * d_head, d_head, text.keys + at);
            std::copy_n(v + g * d_head, d_head, text.values + at);
        }
    }
    void rotate(float* head, Index position) const {
        for (Index p = 0; p < n_planes; ++p) {
            float &a = head[pairs ? 2 * p : p], &b = head[pairs ? 2 * p + 1 : p + n_planes];
            const float c = cos[position * n_planes + p], s = sin[position * n_planes + p];
            const float turned = a * c - b * s;
            b = a * s + b * c, a = turned;
        }
    }
};

struct Attention {  // z_h = sum_j A_hj v_j,  A_h = softmax_j(cap(scale q_h . k_j) + bias_h(distance))
    const float* q;
    float *z, *scores;         // scores [head, position]
    const float* bias;         // [head, distance], or null
    Index layer, n_heads, n_kv_heads, d_head, n_ctx, window;  // window 0: all positions are read
    float scale, cap;                                         // cap 0: none

    void run(const Text& text, Team team) const {
        const Part part(n_heads, team);
        for (Index h = part.begin; h < part.end; ++h) head(text, h);
    }
    void head(const Text& text, Index h) const {
        const Index n = text.length + 1, first = window && n > window ? n - window : 0;
        const Index at = layer * text.layer_stride + h * n_kv_heads / n_heads * text.capacity * d_head;
        const float* values = text.values + at;
        float* s = scores + h * n_ctx;
        outputs(Float32{text.keys + at}, nullptr, q + h * d_head, s, first, n, {1, n, d_head});
        for (Index j = first; j < n; ++j) {
            s[j] = cap ? cap * std::tanh(scale * s[j] / cap) : scale * s[j];
            s[j] += bias ? bias[h * n_ctx + n - 1 - j] : 0.0f;
        }
        const float top = *std::max_element(s + first, s + n);
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (Index j = first; j < n; ++j) total += s[j] = exponential(s[j] - top);
        float* sum = z + h * d_head;
        std::fill_n(sum, d_head, 0.0f);
        for (Index j = first; j < n; ++j)
            for (Index i = 0; i < d_head; ++i) sum[i] += s[j] / total * values[j * d_head + i];
    }
};

struct Activation {  // y = f(x), or f(x) up
    const float *x, *up;  // up is null where the MLP has no gate
    float* y;
    Index n;
    int32_t f;  // a place in the list of `compiled_step.py`

    void run(const Text&, Team team) const {
        const Part part(n, team);
        switch (f) {
            case 0: return each<gelu>(part);
            case 1: return each<gelu_tanh>(part);
            case 2: return each<relu>(part);
            case 3: return each<relu2>(part);
            case 4: return each<silu>(part);
            case 5: return each<quick_gelu>(part);
            default: return each<hyperbolic_tangent>(part);
        }
    }
    template <float function(float)>
    void each(Part part) const {
        if (!up)
            for (Index i = part.begin; i < part.end; ++i) y[i] = function(x[i]);
        else
            for (Index i = part.begin; i < part.end; ++i) y[i] = function(x[i]) * up[i];
    }
};

struct Addition {  // x += c y
    float* x;
    const float* y;
    Index n;
    float c;

    void run(const Text&, Team team) const {
        const Part part(n, team);
        for (Index i = part.begin; i < part.end; ++i) x[i] += c * y[i];
    }
};

struct Operation {
    int32_t kind;   // a place in the list of `compiled_step.py`
    int32_t waits;  // threads wait for each other behind it
    const void* what;

    void run(const Text& text, Team team) const {
        switch (kind) {
            case 0: return ((const Norm*)what)->run(text, team);
            case 1: return ((const Product*)what)->run(text, team);
            case 2: return ((const Append*)what)->run(text, team);
            case 3: return ((const Attention*)what)->run(text, team);
            case 4: return ((const Activation*)what)->run(text, team);
            default: return ((const Addition*)what)->run(text, team);
        }
    }
};

}  // namespace

extern "C" void run_operations(const Operation* operations, Index n, float* keys, float* values, Index layer_stride,
                               Index capacity, Index length, Index n_threads) {
    const Text text{keys, values, layer_stride, capacity, length};
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        const Team team{Index(omp_get_thread_num()), Index(omp_get_num_threads())};
        for (Index i = 0; i < n; ++i) {
            operations[i].run(text, team);
            if (operations[i].waits) {
#pragma omp barrier
            }
        }
    }
}
