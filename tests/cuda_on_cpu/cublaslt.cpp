// A cublasLt for the tests: its functions as NVIDIA's header declares them, over host memory, for float32 alone.

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

using Attributes = std::map<int, std::vector<char>>;

struct Operation { int compute, scale; Attributes set; };
struct Layout { int type; uint64_t rows, columns; int64_t leading; Attributes set; };
struct Preference { Attributes set; };
struct Algorithm { uint64_t data[8]; };
struct Result { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS_POINTER = 8, BATCH_COUNT = 5, BATCH_STRIDE = 6, MAX_WORKSPACE = 1 };
static int searches, products, living;

template <typename T>
static T value(const Attributes &set, int attribute, T otherwise) {
  auto found = set.find(attribute);
  if (found != set.end() && found->second.size() == sizeof(T)) std::memcpy(&otherwise, found->second.data(), sizeof(T));
  return otherwise;
}

template <typename T>
static int write(T *held, int attribute, const void *from, size_t size) {
  const char *bytes = static_cast<const char *>(from);
  held->set[attribute] = std::vector<char>(bytes, bytes + size);
  return SUCCESS;
}

template <typename T>
static int destroy(T *held) {
  delete held;
  --living;
  return SUCCESS;
}

static const float *element(const void *memory, const Layout *layout, int64_t n, int64_t i, int64_t j) {
  int64_t stride = value<int64_t>(layout->set, BATCH_STRIDE, 0);
  return static_cast<const float *>(memory) + n * stride + j * layout->leading + i;
}

extern "C" {

int count_searches() { return searches; }
int count_products() { return products; }
int count_living() { return living; }

size_t cublasLtGetVersion() { return 130000; }

int cublasLtCreate(void **handle) {
  *handle = reinterpret_cast<void *>(0x1234);
  return SUCCESS;
}

int cublasLtMatmulDescCreate(Operation **made, int compute, int scale) {
  return ++living, *made = new Operation{compute, scale, {}}, SUCCESS;
}
int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  return ++living, *made = new Layout{type, rows, columns, leading, {}}, SUCCESS;
}
int cublasLtMatmulPreferenceCreate(Preference **made) { return ++living, *made = new Preference, SUCCESS; }

int cublasLtMatmulDescSetAttribute(Operation *held, int at, const void *from, size_t n) { return write(held, at, from, n); }
int cublasLtMatrixLayoutSetAttribute(Layout *held, int at, const void *from, size_t n) { return write(held, at, from, n); }
int cublasLtMatmulPreferenceSetAttribute(Preference *held, int at, const void *from, size_t n) {
  return write(held, at, from, n);
}

int cublasLtMatmulDescDestroy(Operation *held) { return destroy(held); }
int cublasLtMatrixLayoutDestroy(Layout *held) { return destroy(held); }
int cublasLtMatmulPreferenceDestroy(Preference *held) { return destroy(held); }

int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int requested, Result results[], int *found) {
  ++searches;
  *found = 0;
  if (handle != reinterpret_cast<void *>(0x1234) || requested < 1) return INVALID_VALUE;
  if (a->type || b->type || c->type || d->type || d->rows == 13) return NOT_SUPPORTED;
  results[0] = Result{{{42}}, value<size_t>(preference->set, MAX_WORKSPACE, 0) / 2, SUCCESS, 1.0f, {}};
  *found = 1;
  return SUCCESS;
}

int cublasLtMatmul(void *handle, Operation *operation, const void *alpha, const void *a, Layout *A, const void *b,
                   Layout *B, const void *beta, const void *c, Layout *C, void *d, Layout *D,
                   const Algorithm *algorithm, void *workspace, size_t size, void *stream) {
  bool ours = handle == reinterpret_cast<void *>(0x1234) && stream == reinterpret_cast<void *>(0x77);
  if (!ours || algorithm->data[0] != 42 || !workspace || size != 16 << 20) return INVALID_VALUE;
  static_cast<char *>(workspace)[size - 1] = 1;
  ++products;
  bool turn_a = value<int32_t>(operation->set, TRANS_A, 0), turn_b = value<int32_t>(operation->set, TRANS_B, 0);
  bool biased = value<int32_t>(operation->set, EPILOGUE, 1) == 4;
  const float *bias = value<const float *>(operation->set, BIAS_POINTER, nullptr);
  float scale = *static_cast<const float *>(alpha), keep = *static_cast<const float *>(beta);
  int64_t terms = turn_a ? A->rows : A->columns;
  for (int64_t n = 0; n < value<int32_t>(D->set, BATCH_COUNT, 1); ++n)
    for (int64_t j = 0; j < int64_t(D->columns); ++j)
      for (int64_t i = 0; i < int64_t(D->rows); ++i) {
        double sum = 0;
        for (int64_t k = 0; k < terms; ++k)
          sum += double(turn_a ? *element(a, A, n, k, i) : *element(a, A, n, i, k)) *
                 (turn_b ? *element(b, B, n, j, k) : *element(b, B, n, k, j));
        double old = keep ? keep * *element(c, C, n, i, j) : 0;
        *const_cast<float *>(element(d, D, n, i, j)) = float(scale * sum + old + (biased ? bias[i] : 0));
      }
  return SUCCESS;
}
}
