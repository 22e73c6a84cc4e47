// -log softmax(x)[t] of rows of logits x, and its gradients: each reads the logits once more, and makes no copy of them.
//
// A row fits into a core's caches, so that it costs one exponential a logit and what memory delivers. Logits are float32
// or bfloat16, everything between is float32, and each row is summed in an order that depends on n alone: the same
// numbers for any number of rows and threads. `cross_entropy.py` compiles this file.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

typedef size_t Index;
#ifdef __AVX512F__
constexpr Index LANES = 16;  // numbers that are computed at once
#else
constexpr Index LANES = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
constexpr float INF = __builtin_inff();

template <typename Vector>
Vector load(const void* from) {  // from any address
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

struct Float32 {
    typedef float Number;
    static Floats read(const Number* x) { return load<Floats>(x); }
    static void write(Number* y, Floats v) { std::memcpy(y, &v, sizeof v); }
};

struct BFloat16 {
    typedef uint16_t Number;
    static Floats read(const Number* x) { return (Floats)(__builtin_convertvector(load<Halves>(x), Words) << 16); }
    static void write(Number* y, Floats v) {  // rounded to the nearest, ties to even; NaN stays NaN
        const Words bits = (Words)v, rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, is_nan = (Words)(v != v);
        const Halves halves = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7FC0), Halves);
        std::memcpy(y, &halves, sizeof halves);
    }
};

// e^x = 2^n e^r with n the integer nearest to x / ln 2, and e^r a polynomial (Cephes, expf); 0 below the least normal number
inline Floats exponential(Floats x) {
    const Floats shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  // 1.5 2^23: rounds to an integer
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const Integers is_zero = x < -87.3f, power = ((Integers)shifted << 23) + (127 << 23);  // the bits of 2^n
    return (Floats)((Integers)(p * (Floats)power) & ~is_zero);
}

// The last n < LANES numbers of a row, and `fill` behind them.
template <typename Type>
Floats read_end(const typename Type::Number* x, Index n, float fill) {
    typename Type::Number numbers[LANES] = {};
    std::memcpy(numbers, x, n * sizeof *x);
    Floats v = Type::read(numbers);
    for (Index i = n; i < LANES; ++i) v[i] = fill;
    return v;
}

template <typename Type>
float read_one(const typename Type::Number* x) { return read_end<Type>(x, 1, 0)[0]; }

template <typename Type>
void write_end(typename Type::Number* y, Index n, Floats v) {
    typename Type::Number numbers[LANES];
    Type::write(numbers, v);
    std::memcpy(y, numbers, n * sizeof *y);
}

// max_j x_j of a row; NaN is passed over
template <typename Type>
float maximum(const typename Type::Number* x, Index n) {
    const Index whole = n / LANES * LANES;
    Floats largest = read_end<Type>(x + whole, n - whole, -INF);
    for (Index i = 0; i < whole; i += LANES) {
        const Floats v = Type::read(x + i);
        largest = v > largest ? v : largest;
    }
    float most = largest[0];
    for (Index i = 1; i < LANES; ++i) most = largest[i] > most ? largest[i] : most;
    return most;
}

// log sum_j e^x_j of a row
template <typename Type>
float log_sum(const typename Type::Number* x, Index n) {
    const Index whole = n / LANES * LANES;
    const float most = maximum<Type>(x, n);
    float total = 0;
    Floats sums = exponential(read_end<Type>(x + whole, n - whole, -INF) - most);
    for (Index i = 0; i < whole; i += LANES) sums += exponential(Type::read(x + i) - most);
    for (Index i = 0; i < LANES; ++i) total += sums[i];
    return most + __builtin_logf(total);
}

// nats = -log softmax(x)[t] and log_sums of every row; 0 nats where t < 0
template <typename Type>
void losses(const void* logits, const int64_t* targets, float* nats, float* log_sums, Index rows, Index n, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename Type::Number* x = (const typename Type::Number*)logits + row * n;
        log_sums[row] = log_sum<Type>(x, n);
        nats[row] = targets[row] < 0 ? 0 : log_sums[row] - read_one<Type>(x + targets[row]);
    }
}

// y = (softmax(x) - [j = t]) by[row]; 0 where t < 0
template <typename Type>
void gradients(const void* logits, const int64_t* targets, const float* log_sums, const float* by, void* result, Index rows,
               Index n, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename Type::Number* x = (const typename Type::Number*)logits + row * n;
        typename Type::Number* y = (typename Type::Number*)result + row * n;
        const int64_t target = targets[row];
        if (target < 0) {
            std::memset(y, 0, n * sizeof *y);
            continue;
        }
        const Index whole = n / LANES * LANES;
        const float sum = log_sums[row], factor = by[row];
        for (Index i = 0; i < whole; i += LANES) Type::write(y + i, exponential(Type::read(x + i) - sum) * factor);
        const Floats end = read_end<Type>(x + whole, n - whole, 0);
        write_end<Type>(y + whole, n - whole, exponential(end - sum) * factor);
        write_end<Type>(y + target, 1, (exponential(read_end<Type>(x + target, 1, 0) - sum) - 1) * factor);
    }
}

// whether the target is the first of the largest logits of its row
template <typename Type>
void hits(const void* logits, const int64_t* targets, bool* result, Index rows, Index n, Index threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index row = 0; row < rows; ++row) {
        const typename Type::Number* x = (const typename Type::Number*)logits + row * n;
        const int64_t target = targets[row];
        const float most = maximum<Type>(x, n);
        result[row] = target >= 0 && read_one<Type>(x + target) == most && (target == 0 || maximum<Type>(x, target) < most);
    }
}

}  // namespace

extern "C" {
void losses_float32(const void* x, const int64_t* t, float* nats, float* sums, Index rows, Index n, Index threads) {
    losses<Float32>(x, t, nats, sums, rows, n, threads);
}
void losses_bfloat16(const void* x, const int64_t* t, float* nats, float* sums, Index rows, Index n, Index threads) {
    losses<BFloat16>(x, t, nats, sums, rows, n, threads);
}
void hits_float32(const void* x, const int64_t* t, bool* result, Index rows, Index n, Index threads) {
    hits<Float32>(x, t, result, rows, n, threads);
}
void hits_bfloat16(const void* x, const int64_t* t, bool* result, Index rows, Index n, Index threads) {
    hits<BFloat16>(x, t, result, rows, n, threads);
}
void gradients_float32(const void* x, const int64_t* t, const float* sums, const float* by, void* y, Index rows, Index n,
                       Index threads) {
    gradients<Float32>(x, t, sums, by, y, rows, n, threads);
}
void gradients_bfloat16(const void* x, const int64_t* t, const float* sums, const float* by, void* y, Index rows, Index n,
                        Index threads) {
    gradients<BFloat16>(x, t, sums, by, y, rows, n, threads);
}
}
