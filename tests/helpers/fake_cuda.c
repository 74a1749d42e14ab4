/* What NVIDIA's libraries answer on a GPU that does not compute; see fake_cuda.py.

   Memory is the host's, copies are copies, handles are addresses of nothing, and every call succeeds. Variables:
   FAKE_GPUS: number of GPUs, 1 by default        FAKE_CAPABILITY: their compute capability, 8.0 by default
   FAKE_DRIVER: newest CUDA of the driver, 12.4   FAKE_FAULT: number of an error with which the driver starts
   FAKE_CUDA_LOG: a file that gets the name of each function called */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void *handle;
typedef size_t bytes;
enum { DONE = 0, NO_MEMORY = 2, NO_DEVICE = 100, BAD_DEVICE = 101 };
static char nothing[4096];

void fake_called(const char *name) {
    const char *path = getenv("FAKE_CUDA_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0) return;
    dprintf(file, "%s\n", name);
    close(file);
}

static const char *setting(const char *name, const char *usual) {
    const char *text = getenv(name);
    return text ? text : usual;
}

/* CUDA_VISIBLE_DEVICES: numbers or GPU-... names; the first that is not there hides it and all that follow. */
static int visible(void) {
    int count = atoi(setting("FAKE_GPUS", "1")), seen = 0;
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES");
    if (!chosen) return count;
    char copy[1024], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", chosen);
    while ((entry = strsep(&rest, ","))) {
        if (strncmp(entry, "GPU-", 4) == 0) entry += 4;
        if (*entry < '0' || *entry > '9' || atoi(entry) >= count) break;
        seen++;
    }
    return seen;
}

/* The driver, libcuda.so.1 */
int cuInit(unsigned flags) { return getenv("FAKE_FAULT") ? atoi(getenv("FAKE_FAULT")) : visible() ? DONE : NO_DEVICE; }
int cuDriverGetVersion(int *version) {
    int major = 0, minor = 0;
    sscanf(setting("FAKE_DRIVER", "12.4"), "%d.%d", &major, &minor);
    *version = 1000 * major + 10 * minor;
    return DONE;
}
int cuDeviceGetCount(int *count) { *count = visible(); return DONE; }
int cuDeviceGet(int *device, int number) { *device = number; return number < visible() ? DONE : BAD_DEVICE; }
int cuGetErrorString(int error, const char **text) {
    *text = "an error of the fake";
    return DONE;
}
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "fake GPU"); return DONE; }
int cuDeviceTotalMem_v2(bytes *total, int device) { *total = (bytes)8 << 30; return DONE; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    int major = 0, minor = 0;
    sscanf(setting("FAKE_CAPABILITY", "8.0"), "%d.%d", &major, &minor);
    *value = attribute == 75 ? major : attribute == 76 ? minor : 0; /* COMPUTE_CAPABILITY_MAJOR, _MINOR */
    return DONE;
}

/* The runtime, libcudart.so.11.0 */
int cudaGetDeviceCount(int *count) { *count = visible(); return *count ? DONE : NO_DEVICE; }
int cudaSetDevice(int device) { return device < visible() ? DONE : BAD_DEVICE; }
int cudaMemGetInfo(bytes *free_, bytes *total) { *free_ = (bytes)6 << 30, *total = (bytes)8 << 30; return DONE; }
int cudaMalloc(handle *p, bytes n) { *p = calloc(1, n ? n : 1); return *p ? DONE : NO_MEMORY; }
int cudaFree(handle p) { free(p); return DONE; }
int cudaHostAlloc(handle *p, bytes n, unsigned flags) { return cudaMalloc(p, n); }
int cudaFreeHost(handle p) { free(p); return DONE; }
int cudaMemcpy(handle to, handle from, bytes n, int kind) { memmove(to, from, n); return DONE; }
int cudaMemcpyAsync(handle to, handle from, bytes n, int kind, handle stream) { memmove(to, from, n); return DONE; }
int cudaMemset(handle p, int value, bytes n) { memset(p, value, n); return DONE; }
int cudaMemsetAsync(handle p, int value, bytes n, handle stream) { memset(p, value, n); return DONE; }
const char *cudaGetErrorString(int error) { return error == BAD_DEVICE ? "invalid device ordinal" : "an error"; }
const char *cudaGetErrorName(int error) { return "cudaErrorOfTheFake"; }
int cudaEventElapsedTime(float *ms, handle from, handle to) { *ms = 0.1f; return DONE; }
int cudaStreamCreateWithFlags(handle *p, unsigned flags) { *p = nothing; return DONE; }
int cudaStreamCreateWithPriority(handle *p, unsigned flags, int priority) { *p = nothing; return DONE; }
int cudaEventCreateWithFlags(handle *p, unsigned flags) { *p = nothing; return DONE; }
/* cudaDeviceProp of CUDA 11, by offsets: name[256], uuid[16], luid[8], luidDeviceNodeMask, then sizes from 288 on */
int cudaGetDeviceProperties(char *p, int device) {
    int major = 0, minor = 0;
    sscanf(setting("FAKE_CAPABILITY", "8.0"), "%d.%d", &major, &minor);
    memset(p, 0, 720);
    strcpy(p, "fake GPU");
    for (int *i = (int *)(p + 600); i < (int *)(p + 700); i++) *i = 2048; /* threads of a multiprocessor and others */
    bytes *memory = (bytes *)(p + 288), *constant = (bytes *)(p + 352), *texture = (bytes *)(p + 368);
    int *block = (int *)(p + 304), *grid = (int *)(p + 320), *version = (int *)(p + 360), *units = (int *)(p + 384);
    memory[0] = (bytes)8 << 30, memory[1] = 49152;
    block[0] = 65536, block[1] = 32; /* registers, threads of a warp */
    *(bytes *)(p + 312) = 2147483647;
    grid[0] = grid[1] = grid[2] = 1024, grid[3] = 64, grid[4] = 2147483647, grid[5] = grid[6] = 65535;
    grid[7] = 1410000;
    constant[0] = 65536, version[0] = major, version[1] = minor, texture[0] = 512, texture[1] = 32;
    units[0] = 1, units[1] = 108;
    return DONE;
}

/* The libraries that compute */
#define CREATES(name) int name(handle *p) { *p = nothing; return DONE; }
CREATES(cudaStreamCreate) CREATES(cudaEventCreate) CREATES(cublasCreate_v2) CREATES(cudnnCreate)
CREATES(cudnnCreateActivationDescriptor) CREATES(cudnnCreateConvolutionDescriptor)
CREATES(cudnnCreateDropoutDescriptor) CREATES(cudnnCreateFilterDescriptor) CREATES(cudnnCreateLRNDescriptor)
CREATES(cudnnCreateOpTensorDescriptor) CREATES(cudnnCreatePoolingDescriptor) CREATES(cudnnCreateRNNDescriptor)
CREATES(cudnnCreateReduceTensorDescriptor) CREATES(cudnnCreateTensorDescriptor)
int cublasGetMathMode(handle h, int *mode) { *mode = 0; return DONE; }
int curandCreateGenerator(handle *p, int kind) { *p = nothing; return DONE; }
int nvrtcVersion(int *major, int *minor) { *major = 11, *minor = 8; return DONE; }
bytes cudnnGetVersion(void) { return 8906; }
const char *cudnnGetErrorString(int error) { return "an error of the fake"; }

/* In which precision float32 is computed: 3 is FMA, 0 and 1 let cuDNN take TF32; 68 is float32, 77 TF32. */
static void called_with(const char *name, int value) {
    char text[100];
    snprintf(text, sizeof text, "%s %d", name, value);
    fake_called(text);
}
int cudnnSetConvolutionMathType(handle d, int kind) { called_with("cudnnSetConvolutionMathType", kind); return DONE; }
/* The product of float32 matrices is right, so that a square norm is not negative: c = alpha a b + beta c, by columns. */
int cublasGemmEx(handle h, int turns_a, int turns_b, int m, int n, int k, const float *alpha, const float *a, int type_a,
                 int lda, const float *b, int type_b, int ldb, const float *beta, float *c, int type_c, int ldc,
                 int computes_in, int algorithm) {
    called_with("cublasGemmEx", computes_in);
    if (type_a || type_b || type_c) return DONE; /* another type than float32 */
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0;
            for (int i = 0; i < k; i++)
                sum += a[turns_a ? (bytes)row * lda + i : (bytes)i * lda + row]
                       * b[turns_b ? (bytes)i * ldb + column : (bytes)column * ldb + i];
            float *out = c + (bytes)column * ldc + row;
            *out = *alpha * sum + (*beta ? *beta * *out : 0);
        }
    return DONE;
}

struct algorithm { int number, status; float time; bytes memory; int determinism, math, reserved[3]; };
static int one_algorithm(int *count, struct algorithm *found) {
    *count = 1;
    memset(found, 0, sizeof *found);
    found->number = 1, found->memory = 16;
    return DONE;
}
#define FINDS(name) int name(handle a, handle b, handle c, handle d, handle e, int wanted, int *count, \
                             struct algorithm *found) { return one_algorithm(count, found); }
FINDS(cudnnGetConvolutionForwardAlgorithm_v7) FINDS(cudnnFindConvolutionForwardAlgorithm)
FINDS(cudnnGetConvolutionBackwardDataAlgorithm_v7) FINDS(cudnnFindConvolutionBackwardDataAlgorithm)
FINDS(cudnnGetConvolutionBackwardFilterAlgorithm_v7) FINDS(cudnnFindConvolutionBackwardFilterAlgorithm)

static int of_size(bytes *size, bytes n) { *size = n; return DONE; }
#define FIVE handle a, handle b, handle c, handle d, handle e
int cudnnGetConvolutionForwardWorkspaceSize(FIVE, int f, bytes *n) { return of_size(n, 16); }
int cudnnGetConvolutionBackwardDataWorkspaceSize(FIVE, int f, bytes *n) { return of_size(n, 16); }
int cudnnGetConvolutionBackwardFilterWorkspaceSize(FIVE, int f, bytes *n) { return of_size(n, 16); }
int cudnnGetTensorSizeInBytes(handle a, bytes *n) { return of_size(n, 1 << 16); }
int cudnnGetFilterSizeInBytes(handle a, bytes *n) { return of_size(n, 1 << 16); }
int cudnnDropoutGetStatesSize(handle a, bytes *n) { return of_size(n, 1 << 16); }
int cudnnGetReductionWorkspaceSize(handle a, handle b, handle c, handle d, bytes *n) { return of_size(n, 16); }
int cudnnGetReductionIndicesSize(handle a, handle b, handle c, handle d, bytes *n) { return of_size(n, 16); }
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(handle h, int m, int o, FIVE, bytes *n) {
    return of_size(n, 16);
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(handle h, int m, int o, FIVE, handle f, handle g, bytes *n) {
    return of_size(n, 16);
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(handle h, int m, int o, handle a, handle x, bytes *n) {
    return of_size(n, 16);
}

/* NCCL, libnccl.so.2, over memory that the processes share; sums of float32 and int32 are right. */
enum { MOST_RANKS = 8, PART = 1 << 20, OF_INT32 = 2, OF_FLOAT32 = 7 };
static const bytes size_of[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
struct shared { volatile int arrived, generation; char sent[MOST_RANKS][PART]; };
struct group { struct shared *shared; int n_ranks, rank; };
struct group_id { char path[128]; };

static void meet(struct group *g) {
    int generation = g->shared->generation;
    if (__sync_add_and_fetch(&g->shared->arrived, 1) == g->n_ranks) {
        g->shared->arrived = 0;
        __sync_add_and_fetch(&g->shared->generation, 1);
    }
    while (g->shared->generation == generation) usleep(20);
}

int ncclGetUniqueId(struct group_id *id) {
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->path, sizeof id->path, "/dev/shm/fake_nccl_%d_%d", getpid(), count++);
    return DONE;
}
int ncclCommInitRank(struct group **made, int n_ranks, struct group_id id, int rank) {
    struct group *g = calloc(1, sizeof *g);
    int file = open(id.path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared))) return NO_MEMORY;
    g->shared = mmap(0, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    g->n_ranks = n_ranks, g->rank = rank, *made = g;
    meet(g);
    if (rank == 0) unlink(id.path);
    return DONE;
}
int ncclAllReduce(const char *from, char *to, bytes n, int type, int op, struct group *g, handle stream) {
    fake_called("ncclAllReduce");
    for (bytes at = 0; at < n * size_of[type]; at += PART) {
        bytes length = n * size_of[type] - at < PART ? n * size_of[type] - at : PART;
        memcpy(g->shared->sent[g->rank], from + at, length);
        meet(g);
        memcpy(to + at, g->shared->sent[0], length);
        for (int rank = 1; rank < g->n_ranks; rank++) {
            for (bytes k = 0; type == OF_FLOAT32 && k < length / 4; k++)
                ((float *)(to + at))[k] += ((float *)g->shared->sent[rank])[k];
            for (bytes k = 0; type == OF_INT32 && k < length / 4; k++)
                ((int *)(to + at))[k] += ((int *)g->shared->sent[rank])[k];
        }
        meet(g);
    }
    return DONE;
}
int ncclAllGather(const char *from, char *to, bytes n, int type, struct group *g, handle stream) {
    fake_called("ncclAllGather");
    for (bytes at = 0; at < n * size_of[type]; at += PART) {
        bytes length = n * size_of[type] - at < PART ? n * size_of[type] - at : PART;
        memcpy(g->shared->sent[g->rank], from + at, length);
        meet(g);
        for (int rank = 0; rank < g->n_ranks; rank++)
            memcpy(to + rank * n * size_of[type] + at, g->shared->sent[rank], length);
        meet(g);
    }
    return DONE;
}

/* MindSpore's kernels, libcuda_ops.so.11. Products of float32 are right, because ranks act on sums of votes and texts,
   which are multiplied by a factor, and so are casts. Other operations on single elements give 0, and comparisons true; a
   reduction begins with 0, of integers with 1. So a condition is one, and two passes over a batch have the same loss. */
int done(void) { return DONE; }
struct shape { const long *begin, *end, *room; }; /* std::vector<int64_t> */
static bytes size_of_shape(const struct shape *shape) {
    bytes size = 1;
    for (const long *n = shape->begin; n < shape->end; n++) size *= *n;
    return size;
}
#define BINARY(name, ...) \
    int name(int broadcasts, const struct shape *of_a, const struct shape *of_b, const struct shape *of_out, \
             const float *a, const float *b, char *out, bytes device, handle stream) { \
        bytes n = size_of_shape(of_out); \
        __VA_ARGS__ \
        return DONE; \
    }
BINARY(binary_1, memset(out, 1, n);)
BINARY(binary_2, memset(out, 0, 2 * n);)
BINARY(binary_4, memset(out, 0, 4 * n);)
BINARY(binary_8, memset(out, 0, 8 * n);)
BINARY(product, {
    bytes n_a = size_of_shape(of_a), n_b = size_of_shape(of_b);
    memset(out, 0, 4 * n);
    if ((n_a == n || n_a == 1) && (n_b == n || n_b == 1))
        for (bytes k = 0; k < n; k++) ((float *)out)[k] = a[n_a == 1 ? 0 : k] * b[n_b == 1 ? 0 : k];
})
int unary_1(bytes n, const char *in, char *out, handle stream) { memset(out, 1, n); return DONE; }
int unary_2(bytes n, const char *in, char *out, handle stream) { memset(out, 0, 2 * n); return DONE; }
int unary_4(bytes n, const char *in, char *out, handle stream) { memset(out, 0, 4 * n); return DONE; }
int unary_8(bytes n, const char *in, char *out, handle stream) { memset(out, 0, 8 * n); return DONE; }
#define TERNARY(name, ...) \
    int name(int broadcasts, const struct shape *of_a, const struct shape *of_b, const struct shape *of_out, \
             const void *a, const void *b, const void *c, char *out, bytes device, handle stream) { \
        bytes n = size_of_shape(of_out); \
        __VA_ARGS__ \
        return DONE; \
    }
TERNARY(ternary_1, memset(out, 1, n);)
TERNARY(ternary_2, memset(out, 0, 2 * n);)
TERNARY(ternary_4, memset(out, 0, 4 * n);)
TERNARY(ternary_8, memset(out, 0, 8 * n);)
#define CASTS(from, type) CAST(from, type, b, char) CAST(from, type, i, int) CAST(from, type, l, long) \
    CAST(from, type, f, float)
#define CAST(from, type, to, new_type) \
    int cast_##from##to(int n, const type *in, new_type *out, handle stream) { \
        for (int k = 0; k < n; k++) out[k] = (new_type)in[k]; \
        return DONE; \
    }
CASTS(b, char) CASTS(i, int) CASTS(l, long) CASTS(f, float)
int fill(long n, const float *value, float *out, unsigned device, handle stream) {
    for (long k = 0; k < n; k++) out[k] = *value;
    return DONE;
}
#define REDUCTION(letter, type, first) \
    int reduction_##letter(const type *in, const struct shape *of_in, int unifies, int kind, type *room, type *out) { \
        *out = first; \
        return DONE; \
    }
REDUCTION(f, float, 0) REDUCTION(i, int, 1) REDUCTION(l, long, 1) /* a loss of 0, over one item */
