// RMSprop's update of a table's rows, each read and written once. `rmsprop.py` has the formula, and compiles
// this file.
#include <cstddef>
#include <cstdint>

typedef size_t Index;

// s <- s + weight g^2, w <- w - rate g / (root_of_scale sqrt(s) + eps) of rows[0 ... n - 1], no two of which are the same,
// or of rows 0 ... n - 1 where `rows` is null
extern "C" void update_rows(float* table, float* sums, const int64_t* rows, const float* gradient, Index n, Index width,
                            Index threads, float rate, float eps, float weight, float root_of_scale) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (Index i = 0; i < n; ++i) {
        const Index row = rows ? rows[i] : i;
        float* w = table + row * width;
        float* s = sums + row * width;
        const float* g = gradient + i * width;
#pragma omp simd
        for (Index j = 0; j < width; ++j) {
            s[j] += weight * g[j] * g[j];
            w[j] -= rate * g[j] / (root_of_scale * __builtin_sqrtf(s[j]) + eps);
        }
    }
}
