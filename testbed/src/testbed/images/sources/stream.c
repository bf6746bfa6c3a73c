/*
 * Sustainable memory bandwidth, by the four vector kernels that STREAM made customary:
 * copy c=a, scale b=s*c, add c=a+b, triad a=b+s*c. An independent implementation; its figures are comparable in
 * kind, but are not "STREAM results" in the sense of that benchmark's rules.
 *
 * usage: stream [elements [repetitions]]
 *
 * The arrays should be at least four times as large as all caches together. The best of the repetitions counts; the
 * first is left out, since it still brings pages and frequencies into place.
 */
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum kernel { COPY, SCALE, ADD, TRIAD, KERNELS };

static const char *const names[KERNELS] = {"Copy", "Scale", "Add", "Triad"};
static const int arrays_moved[KERNELS] = {2, 2, 3, 3};
static const double scalar = 3.0;

static double run(enum kernel kernel, double *restrict a, double *restrict b, double *restrict c, size_t n) {
  double start = omp_get_wtime();

  switch (kernel) {
    case COPY:
#pragma omp parallel for schedule(static)
      for (size_t i = 0; i < n; i++) c[i] = a[i];
      break;
    case SCALE:
#pragma omp parallel for schedule(static)
      for (size_t i = 0; i < n; i++) b[i] = scalar * c[i];
      break;
    case ADD:
#pragma omp parallel for schedule(static)
      for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
      break;
    default:
#pragma omp parallel for schedule(static)
      for (size_t i = 0; i < n; i++) a[i] = b[i] + scalar * c[i];
  }
  return omp_get_wtime() - start;
}

/* The same recurrence on single numbers: every element must have come to these values. */
static int valid(const double *a, const double *b, const double *c, size_t n, int repetitions) {
  double x = 1.0, y = 2.0, z = 0.0;
  size_t wrong = 0;

  for (int r = 0; r < repetitions; r++) {
    z = x;
    y = scalar * z;
    z = x + y;
    x = y + scalar * z;
  }
#pragma omp parallel for schedule(static) reduction(+ : wrong)
  for (size_t i = 0; i < n; i++)
    wrong += fabs(a[i] / x - 1) > 1e-12 || fabs(b[i] / y - 1) > 1e-12 || fabs(c[i] / z - 1) > 1e-12;
  return wrong == 0;
}

static double *array(size_t n) {
  double *memory = aligned_alloc(64, (n * sizeof(double) + 63) / 64 * 64);

  if (memory == NULL) {
    fprintf(stderr, "stream: no memory for %zu elements\n", n);
    exit(1);
  }
  return memory;
}

int main(int argc, char **argv) {
  size_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000000;
  int repetitions = argc > 2 ? atoi(argv[2]) : 10;

  /* Beyond 100 rounds the values, which grow 15-fold each, leave the range of a double after some 250. */
  if (argc > 3 || n < 1 || n > SIZE_MAX / 64 || repetitions < 2 || repetitions > 100) {
    fprintf(stderr, "usage: stream [elements [repetitions, 2 to 100]]\n");
    return 2;
  }
  double *a = array(n), *b = array(n), *c = array(n);
  double best[KERNELS] = {DBL_MAX, DBL_MAX, DBL_MAX, DBL_MAX};

  /* Each thread touches first what it will use, so that the pages lie near it. */
#pragma omp parallel for schedule(static)
  for (size_t i = 0; i < n; i++) {
    a[i] = 1.0;
    b[i] = 2.0;
    c[i] = 0.0;
  }
  for (int r = 0; r < repetitions; r++)
    for (enum kernel kernel = COPY; kernel < KERNELS; kernel++) {
      double seconds = run(kernel, a, b, c, n);
      if (r > 0 && seconds < best[kernel]) best[kernel] = seconds;
    }

  printf("elements %zu, MiB per array %.1f, threads %d, repetitions %d\n", n, (double)n * sizeof(double) / 1048576,
         omp_get_max_threads(), repetitions);
  for (enum kernel kernel = COPY; kernel < KERNELS; kernel++)
    printf("%-6s %12.1f MB/s\n", names[kernel],
           1e-6 * arrays_moved[kernel] * sizeof(double) * (double)n / best[kernel]);
  if (!valid(a, b, c, n, repetitions)) {
    fprintf(stderr, "stream: the arrays do not hold the expected values\n");
    return 1;
  }
  puts("values are as expected");
  return 0;
}
