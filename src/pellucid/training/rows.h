// Rows of numbers in vectors: reading and writing float32 and bfloat16, the exponential, and the largest of a row.
//
// Everything between reading and writing is float32. The files beside this one that are compiled include it.
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

inline float sum(Floats v) {
    float total = 0;
    for (Index i = 0; i < LANES; ++i) total += v[i];
    return total;
}

inline float greatest(Floats v) {
    float most = v[0];
    for (Index i = 1; i < LANES; ++i) most = v[i] > most ? v[i] : most;
    return most;
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
    return greatest(largest);
}

}  // namespace
