// What a training step does to rows of numbers between its matrix products: RMS norm, rotation by positions, the causal
// softmax, and the gate of an MLP, each with its gradients, and each reading its tensors once.
//
// Tensors are float32 or bfloat16, everything between is float32, and the order of every sum depends on sizes alone: the
// same numbers for any number of threads. `step_functions.py` compiles this file.
#include "rows.h"

namespace {

// Calls f(index, vector) for the n numbers of a row; behind its end there is 0.
template <typename Type, typename Function>
inline void each(const typename Type::Number* x, Index n, Function f) {
    const Index whole = n / LANES * LANES;
    for (Index i = 0; i < whole; i += LANES) f(i, Type::read(x + i));
    if (whole < n) f(whole, read_end<Type>(x + whole, n - whole, 0));
}

// The vector at i of a row of n numbers; behind its end there is 0.
template <typename Type>
inline Floats at(const typename Type::Number* x, Index i, Index n) {
    return i + LANES <= n ? Type::read(x + i) : read_end<Type>(x + i, n - i, 0);
}

template <typename Type>
inline void put(typename Type::Number* y, Index i, Index n, Floats v) {
    if (i + LANES <= n) Type::write(y + i, v);
    else write_end<Type>(y + i, n - i, v);
}

// y = gain x / rho,  rho = sqrt(mean(x^2) + eps); 1 / rho is kept
template <typename X, typename Y>
void norms(const void* from, const float* gain, void* to, float* inverses, Index rows, Index n, Index threads, float eps) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename X::Number* x = (const typename X::Number*)from + row * n;
        typename Y::Number* y = (typename Y::Number*)to + row * n;
        Floats squares = {};
        each<X>(x, n, [&](Index, Floats v) { squares += v * v; });
        const float inverse = inverses[row] = 1 / __builtin_sqrtf(sum(squares) / n + eps);
        each<X>(x, n, [&](Index i, Floats v) {
            put<Y>(y, i, n, gain ? v * inverse * at<Float32>(gain, i, n) : v * inverse);
        });
    }
}

// With h = dL/dy gain:  dL/dx = h / rho - x (h . x) / (n rho^3);  dL/dgain = sum over rows of dL/dy x / rho. The sums are
// those of `blocks` blocks of rows, [blocks, n], which start at 0.
template <typename X, typename Y>
void norm_gradients(const void* from, const float* gain, const float* inverses, const void* by, void* to, float* sums,
                    Index rows, Index n, Index blocks, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index block = 0; block < blocks; ++block) {
        for (Index row = block * rows / blocks; row < (block + 1) * rows / blocks; ++row) {
            const typename X::Number* x = (const typename X::Number*)from + row * n;
            const typename Y::Number* dy = (const typename Y::Number*)by + row * n;
            typename X::Number* dx = (typename X::Number*)to + row * n;
            const float inverse = inverses[row];
            Floats products = {};
            each<X>(x, n, [&](Index i, Floats v) {
                const Floats d = at<Y>(dy, i, n);
                products += gain ? v * d * at<Float32>(gain, i, n) : v * d;
                if (gain) put<Float32>(sums + block * n, i, n, at<Float32>(sums + block * n, i, n) + d * v * inverse);
            });
            const float share = sum(products) * inverse * inverse / n;
            each<X>(x, n, [&](Index i, Floats v) {
                const Floats d = at<Y>(dy, i, n), h = gain ? d * at<Float32>(gain, i, n) : d;
                put<X>(dx, i, n, (h - v * share) * inverse);
            });
        }
    }
}

// (a, b) -> (a cos - b sin, a sin + b cos) for the halves a and b of each row of n numbers. Row number r is at position
// r / inner mod `positions`, whose cosines and sines are float32 [positions, n / 2]. With sign -1 it turns back.
template <typename Type>
void rotations(const void* from, const float* cosines, const float* sines, void* to, Index rows, Index n, Index inner,
               Index positions, Index threads, float sign) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const Index half = n / 2, first = row / inner % positions * half;
        const typename Type::Number* x = (const typename Type::Number*)from + row * n;
        typename Type::Number* y = (typename Type::Number*)to + row * n;
        each<Type>(x, half, [&](Index i, Floats a) {
            const Floats b = at<Type>(x + half, i, half);
            const Floats c = at<Float32>(cosines + first, i, half), s = at<Float32>(sines + first, i, half) * sign;
            put<Type>(y, i, half, a * c - b * s);
            put<Type>(y + half, i, half, a * s + b * c);
        });
    }
}

constexpr Index LONGEST = 4096;  // numbers of a row of scores

// The vector at i of a row of n numbers of which `read` count, and `fill` in the place of the others.
template <typename Type>
inline Floats readable(const typename Type::Number* x, Index i, Index n, Index read, float fill) {
    const Floats v = at<Type>(x, i, n);
    if (i + LANES <= read) return v;
    Integers lane;
    for (Index j = 0; j < LANES; ++j) lane[j] = j;
    return lane < (int32_t)(read - i) ? v : Floats{} + fill;
}

// A_ij = e^s_ij / sum_k e^s_ik over k <= i, and 0 for j > i, where row number r is that of i = r mod n
template <typename Type>
void patterns(const void* scores, void* pattern, Index rows, Index n, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename Type::Number* s = (const typename Type::Number*)scores + row * n;
        typename Type::Number* a = (typename Type::Number*)pattern + row * n;
        const Index read = row % n + 1;
        Floats values[LONGEST / LANES], largest = Floats{} - INF, sums = {};
        for (Index i = 0; i < read; i += LANES) {
            const Floats v = values[i / LANES] = readable<Type>(s, i, n, read, -INF);
            largest = v > largest ? v : largest;
        }
        const float most = greatest(largest);
        for (Index i = 0; i < read; i += LANES) sums += values[i / LANES] = exponential(values[i / LANES] - most);
        const float share = 1 / sum(sums);
        for (Index i = 0; i < n; i += LANES) put<Type>(a, i, n, i < read ? values[i / LANES] * share : Floats{});
    }
}

// dL/ds_ij = A_ij (dL/dA_ij - sum_k A_ik dL/dA_ik)
template <typename Type>
void pattern_gradients(const void* pattern, const void* by, void* result, Index rows, Index n, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename Type::Number* a = (const typename Type::Number*)pattern + row * n;
        const typename Type::Number* da = (const typename Type::Number*)by + row * n;
        typename Type::Number* ds = (typename Type::Number*)result + row * n;
        const Index read = row % n + 1;
        Floats products = {};
        for (Index i = 0; i < read; i += LANES)
            products += at<Type>(a, i, n) * readable<Type>(da, i, n, read, 0);
        const float mean = sum(products);
        for (Index i = 0; i < n; i += LANES)
            put<Type>(ds, i, n, i < read ? at<Type>(a, i, n) * (readable<Type>(da, i, n, read, 0) - mean) : Floats{});
    }
}

// 1 / (1 + e^-x)
inline Floats sigmoid(Floats x) {
    const Floats least = Floats{} - 87.0f;
    return 1 / (1 + exponential(-(x < least ? least : x)));
}

constexpr Index STRETCH = 4096;  // numbers that a thread takes at once

// y = silu(g) u,  silu(g) = g / (1 + e^-g)
template <typename Type>
void gates(const void* gate, const void* up, void* result, Index n, Index threads) {
    const typename Type::Number *g = (const typename Type::Number*)gate, *u = (const typename Type::Number*)up;
    typename Type::Number* y = (typename Type::Number*)result;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index start = 0; start < n; start += STRETCH) {
        const Index length = n - start < STRETCH ? n - start : STRETCH;
        each<Type>(g + start, length, [&](Index i, Floats v) {
            put<Type>(y + start, i, length, v * sigmoid(v) * at<Type>(u + start, i, length));
        });
    }
}

// dL/du = dL/dy silu(g),  dL/dg = dL/dy u s (1 + g (1 - s)),  s = 1 / (1 + e^-g)
template <typename Type>
void gate_gradients(const void* gate, const void* up, const void* by, void* by_gate, void* by_up, Index n, Index threads) {
    const typename Type::Number *g = (const typename Type::Number*)gate, *u = (const typename Type::Number*)up;
    const typename Type::Number* dy = (const typename Type::Number*)by;
    typename Type::Number *dg = (typename Type::Number*)by_gate, *du = (typename Type::Number*)by_up;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index start = 0; start < n; start += STRETCH) {
        const Index length = n - start < STRETCH ? n - start : STRETCH;
        each<Type>(g + start, length, [&](Index i, Floats v) {
            const Floats d = at<Type>(dy + start, i, length), s = sigmoid(v);
            put<Type>(du + start, i, length, d * v * s);
            put<Type>(dg + start, i, length, d * at<Type>(u + start, i, length) * s * (1 + v * (1 - s)));
        });
    }
}

}  // namespace

#define NORMS(NAME, X, Y)                                                                                                 \
    void norms_##NAME(const void* x, const float* gain, void* y, float* inverses, Index rows, Index n, Index threads,     \
                      float eps) {                                                                                        \
        norms<X, Y>(x, gain, y, inverses, rows, n, threads, eps);                                                         \
    }                                                                                                                     \
    void norm_gradients_##NAME(const void* x, const float* gain, const float* inverses, const void* by, void* dx,         \
                               float* sums, Index rows, Index n, Index blocks, Index threads) {                           \
        norm_gradients<X, Y>(x, gain, inverses, by, dx, sums, rows, n, blocks, threads);                                  \
    }

#define FUNCTIONS(NAME, TYPE)                                                                                             \
    void rotations_##NAME(const void* x, const float* cosines, const float* sines, void* y, Index rows, Index n,          \
                          Index inner, Index positions, Index threads, float sign) {                                      \
        rotations<TYPE>(x, cosines, sines, y, rows, n, inner, positions, threads, sign);                                  \
    }                                                                                                                     \
    void patterns_##NAME(const void* s, void* a, Index rows, Index n, Index threads) {                                    \
        patterns<TYPE>(s, a, rows, n, threads);                                                                           \
    }                                                                                                                     \
    void pattern_gradients_##NAME(const void* a, const void* by, void* ds, Index rows, Index n, Index threads) {          \
        pattern_gradients<TYPE>(a, by, ds, rows, n, threads);                                                             \
    }                                                                                                                     \
    void gates_##NAME(const void* g, const void* u, void* y, Index n, Index threads) { gates<TYPE>(g, u, y, n, threads); } \
    void gate_gradients_##NAME(const void* g, const void* u, const void* by, void* dg, void* du, Index n,                 \
                               Index threads) {                                                                           \
        gate_gradients<TYPE>(g, u, by, dg, du, n, threads);                                                               \
    }

extern "C" {
NORMS(float32_float32, Float32, Float32)
NORMS(float32_bfloat16, Float32, BFloat16)
NORMS(bfloat16_bfloat16, BFloat16, BFloat16)
FUNCTIONS(float32, Float32)
FUNCTIONS(bfloat16, BFloat16)
}
