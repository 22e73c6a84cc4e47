// Whether a processor computes with denormal numbers, for each thread of the team that computes. `denormals.py` compiles
// this file.
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>

// denormal results are 0, and denormal operands are read as 0 (Intel 64 and IA-32 manual, volume 1, 10.2.3)
static const unsigned FLUSHED = 0x8000 | 0x0040;

// *flushed becomes the two bits that the calling thread had, and all threads take those that *flushed asked for
extern "C" void set_flushed(int64_t* flushed, size_t threads) {
    const unsigned before = _mm_getcsr() & FLUSHED;
    const unsigned asked = (unsigned)*flushed & FLUSHED;
#pragma omp parallel num_threads(threads)
    _mm_setcsr((_mm_getcsr() & ~FLUSHED) | asked);
    *flushed = before;
}
#else
extern "C" void set_flushed(int64_t* flushed, size_t threads) {}
#endif
