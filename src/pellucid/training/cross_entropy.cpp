// -log softmax(x)[t] of rows of logits x, and its gradients: each reads the logits once more, and makes no copy of them.
//
// A row fits into a core's caches, so that it costs one exponential a logit and what memory delivers. Logits are float32
// or bfloat16, everything between is float32, and each row is summed in an order that depends on n alone: the same
// numbers for any number of rows and threads. `cross_entropy.py` compiles this file.
#include "rows.h"

namespace {

// log sum_j e^x_j of a row
template <typename Type>
float log_sum(const typename Type::Number* x, Index n) {
    const Index whole = n / LANES * LANES;
    const float most = maximum<Type>(x, n);
    Floats sums = exponential(read_end<Type>(x + whole, n - whole, -INF) - most);
    for (Index i = 0; i < whole; i += LANES) sums += exponential(Type::read(x + i) - most);
    return most + __builtin_logf(sum(sums));
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
