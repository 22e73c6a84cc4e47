// y = x W^T + b for one or a few rows x, with weights of four bytes, of one, or of half a byte.
//
// A product with one row takes as long as reading W takes: W is read once, in the fewest bytes, and each weight becomes a
// float in a register. A thread reads W in STREAMS places at once, since memory delivers several streams sooner than one:
// what one of them waits for at each new page, the others do not. Each output is a sum of LANES partial sums in an order
// that depends on n_in alone: the same numbers for any number of rows and threads. `row_products.py` compiles this file.
#include <cstddef>
#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

typedef size_t Index;
#ifdef __AVX512F__
constexpr Index LANES = 16, MOST_ROWS = 4;  // numbers that are multiplied at once, and rows whose sums fit into registers
#else
constexpr Index LANES = 8, MOST_ROWS = 2;
#endif
constexpr Index STEP = 32;     // weights of a group
constexpr Index STREAMS = 4;   // outputs that are computed at once, each reading its own part of W
constexpr Index AHEAD = 4096;  // bytes of weights that are asked for before they are needed
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

template <typename Vector>
Vector load(const void* from) {  // from any address
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// Ask for the weights AHEAD of these, up to the second cache: the first has fewer places for what has not come yet.
inline void prefetch(const void* weights) { __builtin_prefetch((const char*)weights + AHEAD, 0, 2); }

inline float sum_of(Floats v) {
    float lanes[LANES];
    std::memcpy(lanes, &v, sizeof lanes);
    for (Index n = LANES / 2; n; n /= 2)
        for (Index lane = 0; lane < n; ++lane) lanes[lane] += lanes[lane + n];
    return lanes[0];
}

// a b + c with one rounding, where the processor has it: GCC would fuse the two in some forms of a loop and not in others
#ifdef __AVX512F__
Floats multiply_add(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(__AVX2__) && defined(__FMA__)
Floats multiply_add(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

// LANES bytes as integers, and scale (q - 8) for the lower four bits q of each integer
#ifdef __AVX512F__  // an instruction each, which GCC 12 does not find
Integers from_signed(const void* b) { return (Integers)_mm512_maskz_cvtepi8_epi32(0xFFFF, load<__m128i>(b)); }
Integers from_unsigned(const void* b) { return (Integers)_mm512_maskz_cvtepu8_epi32(0xFFFF, load<__m128i>(b)); }
Floats signed_four(Integers at, float scale) {
    const Floats table = Floats{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7} * scale;
    return (Floats)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)at, (__m512)table);
}
#else
#ifdef __AVX2__
Integers from_signed(const void* b) { return (Integers)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)b)); }
Integers from_unsigned(const void* b) { return (Integers)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)b)); }
#else
typedef int8_t SignedBytes __attribute__((vector_size(LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
Integers from_signed(const void* b) { return __builtin_convertvector(load<SignedBytes>(b), Integers); }
Integers from_unsigned(const void* b) { return __builtin_convertvector(load<Bytes>(b), Integers); }
#endif
Floats signed_four(Integers at, float scale) { return __builtin_convertvector((at & 15) - 8, Floats) * scale; }
#endif

// vector(at, from): LANES weights from at + from on, of the group that begins at `at`
struct Float32 {
    const float* w;
    Floats vector(Index at, Index from) const {
        if (from % 16 == 0) prefetch(w + at + from);
        return load<Floats>(w + at + from);
    }
    float weight(Index at) const { return w[at]; }
    float scale(Index) const { return 1.0f; }
};

struct Int8 {  // W_oi = scale_o q_oi
    const int8_t* q;
    const float* scales;
    Floats vector(Index at, Index from) const {
        if (from == 0) prefetch(q + at);
        return __builtin_convertvector(from_signed(q + at + from), Floats);
    }
    float weight(Index at) const { return q[at]; }
    float scale(Index o) const { return scales[o]; }
};

struct Int4 {  // W_oi = scale_og (q_oi - 8) in groups g of STEP inputs; a byte has a q of each half; STEP divides n_in
    const uint8_t* pairs;
    const uint16_t* scales;  // the upper halves of floats
    Floats vector(Index at, Index from) const {
        if (from == 0) prefetch(pairs + at / 2);
        const uint32_t bits = uint32_t(scales[at / STEP]) << 16;
        float scale;
        std::memcpy(&scale, &bits, sizeof scale);
        const Integers both = from_unsigned(pairs + at / 2 + from % (STEP / 2));
        return signed_four(from < STEP / 2 ? both : both >> 4, scale);
    }
    float weight(Index) const { return 0.0f; }  // there is none behind the last group
    float scale(Index) const { return 1.0f; }
};

struct Sizes {
    Index n_rows, n_out, n_in;
};

// ROWS rows of x times OUTPUTS outputs: o, o + apart, o + 2 apart, ...
template <Index ROWS, Index OUTPUTS, typename W>
void block(const W& weights, const float* bias, const float* x, float* y, Index o, Index apart, Sizes n) {
    Floats sums[OUTPUTS][ROWS] = {};
    Index i = 0;
    for (; i + STEP <= n.n_in; i += STEP)
#pragma GCC unroll 4
        for (Index from = 0; from < STEP; from += LANES) {
            Floats w[OUTPUTS];
            for (Index k = 0; k < OUTPUTS; ++k) w[k] = weights.vector((o + k * apart) * n.n_in + i, from);
            for (Index r = 0; r < ROWS; ++r) {
                const Floats numbers = load<Floats>(x + r * n.n_in + i + from);
                for (Index k = 0; k < OUTPUTS; ++k) sums[k][r] = multiply_add(w[k], numbers, sums[k][r]);
            }
        }
    for (Index k = 0; k < OUTPUTS; ++k)
        for (Index r = 0; r < ROWS; ++r) {
            const Index at = o + k * apart;
            float sum = sum_of(sums[k][r]);
            for (Index j = i; j < n.n_in; ++j) sum += weights.weight(at * n.n_in + j) * x[r * n.n_in + j];
            sum *= weights.scale(at);
            y[r * n.n_out + at] = bias ? sum + bias[at] : sum;
        }
}

template <Index OUTPUTS, typename W>
void all_rows(const W& weights, const float* bias, const float* x, float* y, Index o, Index apart, Sizes n) {
    Index r = 0;
    for (; r + MOST_ROWS <= n.n_rows; r += MOST_ROWS)
        block<MOST_ROWS, OUTPUTS>(weights, bias, x + r * n.n_in, y + r * n.n_out, o, apart, n);
    for (; r < n.n_rows; ++r) block<1, OUTPUTS>(weights, bias, x + r * n.n_in, y + r * n.n_out, o, apart, n);
}

// the outputs from begin to end of all rows
template <typename W>
void outputs(const W& weights, const float* bias, const float* x, float* y, Index begin, Index end, Sizes n) {
    const Index apart = (end - begin) / STREAMS;
    for (Index o = begin; o < begin + apart; ++o) all_rows<STREAMS>(weights, bias, x, y, o, apart, n);
    for (Index o = begin + STREAMS * apart; o < end; ++o) all_rows<1>(weights, bias, x, y, o, 1, n);
}

template <typename W>
void multiply(const W& weights, const float* bias, const float* x, float* y, Sizes n, Index n_threads) {
#pragma omp parallel for schedule(static) num_threads(n_threads) if (n_threads > 1)
    for (Index t = 0; t < n_threads; ++t)
        outputs(weights, bias, x, y, n.n_out * t / n_threads, n.n_out * (t + 1) / n_threads, n);
}

}  // namespace

extern "C" {

void multiply_float32(const float* w, const float* bias, const float* x, float* y, Index n_rows, Index n_out, Index n_in,
                      Index n_threads) {
    multiply(Float32{w}, bias, x, y, {n_rows, n_out, n_in}, n_threads);
}

void multiply_int8(const int8_t* q, const float* scales, const float* bias, const float* x, float* y, Index n_rows,
                   Index n_out, Index n_in, Index n_threads) {
    multiply(Int8{q, scales}, bias, x, y, {n_rows, n_out, n_in}, n_threads);
}

void multiply_int4(const uint8_t* pairs, const uint16_t* scales, const float* bias, const float* x, float* y,
                   Index n_rows, Index n_out, Index n_in, Index n_threads) {
    multiply(Int4{pairs, scales}, bias, x, y, {n_rows, n_out, n_in}, n_threads);
}

}  // extern "C"
