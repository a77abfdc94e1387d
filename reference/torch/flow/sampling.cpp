// Samples of a masked autoregressive flow, feature by feature, each unit computed once.
//
// A block of samples goes through all layers at once, one sample in each lane of a vector, so that
// the units of the block stay in the cache. `sampling.py` packs the weights in the order in which
// they are read here.

#include <cmath>
#include <cstring>
#include <memory>

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16, VECTORS = 2;
#elif defined(__AVX__)
constexpr int WIDTH = 8, VECTORS = 1;
#else
constexpr int WIDTH = 4, VECTORS = 2;
#endif
constexpr int MOST_ROWS = 10;  // accumulators that fit into the registers

typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));

struct Flow {
    long features, layers, hidden_layers;
    const int *counts;  // (hidden layers + 1, features + 1): units of degree <= d; the features' too
    const float *weights;
    float slope;
};

// `rows` units of a dense layer: biases, then one column of weights for each input.
template <int ROWS, int N>
const float *dense_rows(const float *weights, const Vector *in, int inputs, Vector *out, float slope) {
    Vector sums[ROWS][N];
    for (int row = 0; row < ROWS; ++row)
        for (int lane = 0; lane < N; ++lane) sums[row][lane] = Vector{} + weights[row];
    weights += ROWS;
    for (int input = 0; input < inputs; ++input, weights += ROWS)
        for (int row = 0; row < ROWS; ++row)
            for (int lane = 0; lane < N; ++lane)
                sums[row][lane] += weights[row] * in[input * N + lane];
    for (int row = 0; row < ROWS; ++row)
        for (int lane = 0; lane < N; ++lane) {
            const Vector sum = sums[row][lane];
            out[row * N + lane] = sum > 0.0f ? sum : sum * slope;
        }
    return weights;
}

template <int ROWS, int N>
const float *dense(const float *weights, const Vector *in, int inputs, Vector *out, int rows, float slope) {
    if constexpr (ROWS == 0) return weights;
    else {
        while (rows >= ROWS) {
            weights = dense_rows<ROWS, N>(weights, in, inputs, out, slope);
            out += ROWS * N;
            rows -= ROWS;
        }
        return dense<ROWS - 1, N>(weights, in, inputs, out, rows, slope);
    }
}

// N vectors of samples; `values` holds noise and then latents, (samples, features).
template <int N>
void sample_block(const Flow &flow, Vector *memory, float *values, long samples) {
    const long features = flow.features, table = features + 1;
    float lanes[N * WIDTH] = {};
    Vector *given = memory, *found = given + features * N, *pair = found + features * N;
    Vector *hidden = pair + 2 * N;
    for (long feature = 0; feature < features; ++feature) {
        for (long lane = 0; lane < samples; ++lane) lanes[lane] = values[lane * features + feature];
        std::memcpy(found + feature * N, lanes, sizeof lanes);
    }
    const float *weights = flow.weights;
    for (long layer = 0; layer < flow.layers; ++layer) {
        for (long feature = 0; feature < features; ++feature)
            for (int lane = 0; lane < N; ++lane) {
                const long source = layer ? features - 1 - feature : feature;
                given[feature * N + lane] = found[source * N + lane];
            }
        for (long degree = 0; degree < features; ++degree) {
            const Vector *last = hidden;  // the last hidden layer's units
            for (long k = 1; k < flow.hidden_layers; ++k) last += flow.counts[k * table + features] * N;
            weights = dense<MOST_ROWS, N>(
                weights, last, flow.counts[flow.hidden_layers * table + degree], pair, 2, flow.slope);
            for (int lane = 0; lane < N; ++lane) {
                Vector scale;
                for (int i = 0; i < WIDTH; ++i) scale[i] = std::exp(pair[N + lane][i]);
                found[degree * N + lane] = given[degree * N + lane] * scale + pair[lane];
            }
            const Vector *in = found;
            Vector *out = hidden;
            for (long k = 0; k < flow.hidden_layers; ++k) {
                const int *before = flow.counts + k * table, *units = before + table;
                weights = dense<MOST_ROWS, N>(
                    weights, in, before[degree + 1], out + units[degree] * N,
                    units[degree + 1] - units[degree], flow.slope);
                in = out;
                out += units[features] * N;
            }
        }
    }
    for (long feature = 0; feature < features; ++feature) {
        std::memcpy(lanes, found + feature * N, sizeof lanes);
        for (long lane = 0; lane < samples; ++lane) values[lane * features + feature] = lanes[lane];
    }
}

}  // namespace

extern "C" int most_rows() { return MOST_ROWS; }

extern "C" int samples_per_block() { return WIDTH * VECTORS; }

extern "C" void sample(long features, long layers, long hidden_layers, const int *counts,
                       const float *weights, float slope, float *values, long samples) {
    const Flow flow{features, layers, hidden_layers, counts, weights, slope};
    long units = 2 * features + 2;
    for (long k = 1; k <= hidden_layers; ++k) units += counts[k * (features + 1) + features];
    const std::unique_ptr<Vector[]> memory(new Vector[units * VECTORS]);
    for (long first = 0; first < samples; first += WIDTH * VECTORS) {
        const long left = samples - first;
        float *block = values + first * features;
        if (left <= WIDTH) sample_block<1>(flow, memory.get(), block, left);
        else sample_block<VECTORS>(flow, memory.get(), block, left < WIDTH * VECTORS ? left : WIDTH * VECTORS);
    }
}
